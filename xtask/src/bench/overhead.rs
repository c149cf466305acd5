//! Time that each profiler adds to an iteration of the training loop.

use anyhow::{Context, Result};
use serde_json::json;

use super::Options;
use super::profiler::{Profiler, Programs};
use super::statistics::{Measured, Shuffle};
use super::table::Table;
use super::target::{Block, Target};

/// Untimed warm-up iterations under the same profiler.
const WARM: u32 = 50;

/// Measures every profiler in turns.
pub fn measure(target: &mut Target, programs: &Programs, options: &Options) -> Result<Table> {
    eprintln!(
        "== a training loop under each profiler: {} turns of {} iterations each",
        options.rounds, options.iterations
    );
    let profilers = Profiler::all(programs);
    let mut blocks = vec![Vec::new(); profilers.len()];
    let mut losses = vec![None; profilers.len()];
    let mut samples = Vec::new();
    let mut shuffle = Shuffle::new();
    for round in 0..options.rounds {
        for which in shuffle.order(profilers.len()) {
            let (block, lost) = one_block(profilers[which], target, programs, options)?;
            samples.push(json!({
                "profiler": profilers[which].name(),
                "turn": round + 1,
                "block": block,
                "lost": lost,
            }));
            blocks[which].push(block);
            if let Some(lost) = lost {
                *losses[which].get_or_insert(0) += lost;
            }
        }
        let plain = blocks[0][round as usize].mean_us;
        eprintln!(
            "  turn {} of {}: {plain:.0} µs without a profiler",
            round + 1,
            options.rounds
        );
    }
    let title = options.training_loop.title();
    let mut table = table(&title, &profilers, &blocks, &losses)?;
    table.samples(samples);
    Ok(table)
}

fn one_block(
    profiler: Profiler,
    target: &mut Target,
    programs: &Programs,
    options: &Options,
) -> Result<(Block, Option<u64>)> {
    target.check_clean()?;
    let attached = profiler.attach(programs, target.pid())?;
    let block = target.block(profiler.inside(), WARM, options.iterations)?;
    let lost = match attached {
        Some(attached) => attached.detach()?,
        None => None,
    };
    Ok((block, lost))
}

/// Builds the table from the blocks of each profiler and the records that it lost in all of them; the
/// first are without a profiler.
fn table(
    title: &str,
    profilers: &[Profiler],
    blocks: &[Vec<Block>],
    losses: &[Option<u64>],
) -> Result<Table> {
    let plain = blocks.first().context("nothing was measured")?;
    let events = plain
        .iter()
        .map(|block| block.events as f64 / block.iterations as f64);
    let events = Measured::of(events.collect())
        .context("nothing was measured")?
        .median();
    let mut table = Table::new(
        format!("A training loop ({title}, {events:.0} allocator events an iteration)"),
        &[
            "",
            "µs/iteration",
            "slower",
            "middle half",
            "by means",
            "µs/event",
            "lost",
        ],
    );
    for ((&profiler, blocks), lost) in profilers.iter().zip(blocks).zip(losses) {
        let compared = Compared::of(plain, blocks).context("nothing was measured")?;
        let mut cells = [
            profiler.name(),
            format!("{:.0}", compared.microseconds),
            percent(compared.slower.median()),
            {
                let (low, high) = compared.slower.quartiles();
                format!("{} … {}", percent(low), percent(high))
            },
            percent(compared.slower_by_means.median()),
            format!("{:+.2}", compared.microseconds_per_event.median()),
            lost.map_or_else(|| "-".to_owned(), |lost| lost.to_string()),
        ];
        if profiler == Profiler::None {
            cells[2..].fill("-".to_owned());
        }
        table.row(cells);
    }
    table.note(
        "Medians over turns of the median iteration of a block; \"slower\" and \"µs/event\" are against the \
         block without a profiler of the same turn. A block within a budget begins with what the budget allows in three \
         seconds, and is on and off in turns: see its mean. \"By means\" takes a block's mean iteration instead, \
         which holds also what happens seldom. \"Lost\" are the records that a profiler says it dropped, in all \
         turns; PyTorch's own do not count them.",
    );
    Ok(table)
}

/// One profiler compared with no profiler.
struct Compared {
    microseconds: f64,
    slower: Measured,
    slower_by_means: Measured,
    microseconds_per_event: Measured,
}

impl Compared {
    fn of(plain: &[Block], blocks: &[Block]) -> Option<Self> {
        let turns = || plain.iter().zip(blocks);
        let added = |plain: &Block, block: &Block| {
            let events = block.events as f64 / block.iterations as f64;
            (block.median_us - plain.median_us) / events
        };
        Some(Self {
            microseconds: Measured::of(blocks.iter().map(|block| block.median_us).collect())?
                .median(),
            slower: Measured::of(
                turns()
                    .map(|(p, b)| b.median_us / p.median_us - 1.0)
                    .collect(),
            )?,
            slower_by_means: Measured::of(
                turns().map(|(p, b)| b.mean_us / p.mean_us - 1.0).collect(),
            )?,
            microseconds_per_event: Measured::of(turns().map(|(p, b)| added(p, b)).collect())?,
        })
    }
}

fn percent(share: f64) -> String {
    format!("{:+.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(median_us: f64) -> Block {
        Block {
            iterations: 10,
            events: 1000,
            mean_us: 2.0 * median_us,
            median_us,
        }
    }

    #[test]
    fn a_profiler_is_compared_within_its_turn() {
        // The machine is twice as slow in the second turn.
        let plain = [block(100.0), block(200.0)];
        let slow = [block(150.0), block(300.0)];
        let compared = Compared::of(&plain, &slow).unwrap();
        assert_eq!(compared.slower.quartiles(), (0.5, 0.5));
        assert_eq!(compared.slower_by_means.median(), 0.5);
        assert_eq!(compared.microseconds_per_event.median(), 0.75);
    }

    #[test]
    fn slowdowns_are_signed_percentages() {
        assert_eq!(
            (percent(0.386), percent(-0.01)),
            ("+39 %".to_owned(), "-1 %".to_owned())
        );
    }
}
