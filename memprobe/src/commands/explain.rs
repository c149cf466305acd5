//! `explain`: from a process, a file or all processes to one page.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep_until};

use super::host::{HostProbes, Scope};
use super::snapshot::{BlockProbes, BlockTracker, CaptureMode, add_scheduler, taken_with_gpus};
use super::stdout::{self, OutputContent, Stdout};
use super::top::Once;
use super::waiting::remove_probes;
use super::{BaselineReading, EndSignal, Interrupts};
use crate::attribution::growth::GrowthLedger;
use crate::attribution::segments::SegmentLedger;
use crate::attribution::waterfall::unbacked;
use crate::cuda::nvml::Sample;
use crate::event::tensors::TensorSnapshot;
use crate::event::{Bytes, CaptureOptions, DeviceIndex, Event, Tgid};
use crate::ledger::Ledger;
use crate::ledger::snapshot::Grouping;
use crate::probe::catalog::Allocators;
use crate::probe::kernel;
use crate::probe::watched::Watched;
use crate::recording::{Reader, open_tensors};
use crate::report::explain::{
    ExplainOptions, Explanation, ExplanationSource, GpuMemory, ProcessEvidence, explain_process,
    explain_recording, write_explanation, write_host_explanation,
};
use crate::report::{DocumentFormat, HostExtent, HostOptions};
use crate::session::driver::memory_of;
use crate::session::process_monitor::sample_driver;
use crate::tensors::{explain, named};
use crate::view::{consistency, duration};

pub struct Explain {
    pub tgid: Tgid,
    pub manner: CaptureMode,
    /// Time to watch before the objects are read.
    pub watch: Duration,
    pub probes: BlockProbes,
    pub options: ExplainOptions,
}

impl Explain {
    pub fn run(&self) -> Result<ExitCode> {
        // Says what is wrong with a number that is none of a process.
        drop(Watched::open(self.tgid)?);
        let runtime = super::runtime()?;
        let explained = runtime.block_on(self.look());
        // A reading that was given up goes on in its thread. To drop the runtime would wait for it.
        runtime.shutdown_background();
        match explained? {
            Ok(explanation) => print(&explanation, self.options),
            Err(signal) => {
                super::messages::print("interrupted before the page was complete");
                Ok(signal.exit_code())
            }
        }
    }

    /// Watches the process, then reads its objects. Returns the signal that came before.
    async fn look(&self) -> Result<Result<Explanation, EndSignal>> {
        let mut interrupts = Interrupts::new()?;
        let mut tracker = BlockTracker::open(self.tgid, self.probes, || {
            let growth = GrowthLedger::new(Grouping::User, None);
            (growth, SegmentLedger::default())
        });
        tokio::select! {
            signal = interrupts.next() => return Ok(Err(signal)),
            ready = tracker.ready() => ready?,
        }
        let begun = Instant::now();
        let until = begun + self.watch;
        while Instant::now() < until && tracker.is_probed() {
            let line = format!("watching for {}", duration(self.watch));
            tracker.progress.show_line(&line);
            tokio::select! {
                signal = interrupts.next() => return Ok(Err(signal)),
                () = sleep_until(until) => {}
                looked = tracker.look() => looked?,
            }
        }
        tracker.progress.clear();
        let watched = if tracker.is_probed() {
            begun.elapsed()
        } else {
            Duration::ZERO
        };
        let (tgid, manner) = (self.tgid, self.manner);
        tracker.begin();
        let mut taking = tokio::task::spawn_blocking(move || {
            let mut snapshot = taken_with_gpus(tgid, manner, Allocators::Cuda)?;
            add_scheduler(&mut snapshot, tgid, manner);
            anyhow::Ok((snapshot, sample_driver()))
        });
        let outcome = loop {
            tokio::select! {
                signal = interrupts.next() => return Ok(Err(signal)),
                outcome = &mut taking => break outcome,
                looked = tracker.look() => looked?,
            }
        };
        let (mut snapshot, driver) = outcome.context("reading the process")??;
        tracker.sign(&mut snapshot)?;
        Ok(Ok(self.explained(snapshot, driver, tracker, watched)))
    }

    fn explained(
        &self,
        snapshot: TensorSnapshot,
        driver: Result<Sample, String>,
        mut tracker: BlockTracker<(GrowthLedger, SegmentLedger)>,
        watched: Duration,
    ) -> Explanation {
        let mut names = named(&snapshot, self.tgid);
        let (sites, _) = &tracker.ledgers.analyses;
        sites.keep_untouched(snapshot.consistency, &mut names);
        tracker.ledgers.apply(&Event::BlockLabels(names.into()));
        let (_, (growth, segments)) = &tracker.ledgers.analyses;
        let returnable = returnable(segments, &tracker.ledgers.ledger);
        let intervals = growth.intervals_per_iteration();
        let devices = snapshot.devices.iter().map(|totals| totals.device);
        let grown = devices
            .filter(|_| tracker.is_probed())
            .filter_map(|device| Some((device, growth.growth(device, intervals)?)))
            .collect();
        let mut notes = Vec::new();
        let gpus = match driver {
            Ok(sample) => gpus(&snapshot, &sample, &tracker.ledgers.ledger),
            Err(reason) => {
                notes.push(format!("the GPU's own memory is unknown: {reason}"));
                BTreeMap::new()
            }
        };
        let losses = tracker.ledgers.ledger.losses();
        if losses.events > 0 {
            notes.push(format!(
                "{} events were lost: growth may be wrong; raise --buffer-size",
                losses.events
            ));
        }
        remove_probes(tracker);
        let consistency = consistency(snapshot.consistency);
        explain_process(ProcessEvidence {
            table: &explain(snapshot),
            source: ExplanationSource::Process {
                watched,
                consistency,
            },
            gpus,
            growth: grown,
            returnable,
            notes,
        })
    }
}

/// Returns what `empty_cache()` would return on each device whose segments are all known.
fn returnable(segments: &SegmentLedger, ledger: &Ledger) -> BTreeMap<DeviceIndex, Bytes> {
    let snapshot = ledger.snapshot(crate::session::now(), Grouping::User);
    let maps = segments.maps(ledger, &snapshot).into_iter();
    let known = maps.filter(|map| map.read.is_some() && map.unread.is_none() && map.unplaced == 0);
    known.map(|map| (map.index, map.returnable())).collect()
}

/// Returns the memory of the GPU behind each device, as far as the driver tells it. The process went on from the reading of
/// its objects to the driver's answer: what its allocator reserved or returned meanwhile is taken back.
fn gpus(
    snapshot: &TensorSnapshot,
    sample: &Sample,
    ledger: &Ledger,
) -> BTreeMap<DeviceIndex, GpuMemory> {
    let target = &snapshot.target;
    let tgid = target.tgid.unwrap_or(Tgid(0));
    let now = ledger.snapshot(crate::session::now(), Grouping::User);
    let memory = snapshot.devices.iter().filter_map(|read| {
        let (device, reserved) = (read.device, read.totals.reserved.0);
        let found = memory_of(target, tgid, device, sample)?;
        // Without probes, nothing tells what changed.
        let known = now.devices.iter().find(|known| known.index == device);
        let now = known.map_or(reserved, |known| known.totals.reserved.0);
        let then = |counted: Bytes| {
            let sum = counted.0.saturating_add(reserved);
            Bytes(sum.saturating_sub(now))
        };
        let memory = GpuMemory {
            total: found.total,
            used: then(found.used),
            process: found.process.map(then),
            unbacked: unbacked(ledger, device),
        };
        Some((device, memory))
    });
    memory.collect()
}

/// Explains all processes of the machine.
pub fn explain_all(
    listen: Duration,
    probes: BlockProbes,
    options: ExplainOptions,
) -> Result<ExitCode> {
    kernel::preflight()?;
    let once = Once {
        scope: Scope::Host,
        probes: HostProbes {
            capture: CaptureOptions::default(),
            driver: probes.driver,
            ring_bytes: probes.ring_bytes,
            max_overhead: None,
            reading: BaselineReading::Off,
        },
        listen,
        options: HostOptions {
            format: options.format,
            extent: HostExtent::Holders,
            width: Some(options.width),
            colour: options.colour,
        },
    };
    match super::runtime()?.block_on(once.look())? {
        Ok(snapshot) => {
            write_host_explanation(&snapshot, options, &mut open(options))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(signal) => {
            super::messages::print("interrupted before the page was complete");
            Ok(signal.exit_code())
        }
    }
}

/// Explains a recording or a snapshot of tensors.
pub fn explain_file(file: &Path, options: ExplainOptions) -> Result<ExitCode> {
    let name = file.display().to_string();
    let explanation = match open_tensors(file) {
        Ok(snapshot) => explain_process(ProcessEvidence {
            table: &explain(snapshot),
            source: ExplanationSource::Snapshot { file: name },
            gpus: BTreeMap::new(),
            growth: BTreeMap::new(),
            returnable: BTreeMap::new(),
            notes: Vec::new(),
        }),
        Err(_) => {
            let reader = Reader::open(file).with_context(|| {
                format!("{name}: give a recording or a snapshot that memprobe wrote, or a process")
            })?;
            explain_recording(reader, &name).with_context(|| name.clone())?
        }
    };
    print(&explanation, options)
}

fn print(explanation: &Explanation, options: ExplainOptions) -> Result<ExitCode> {
    write_explanation(explanation, options, &mut open(options))?;
    Ok(ExitCode::SUCCESS)
}

fn open(options: ExplainOptions) -> Stdout {
    stdout::open(match options.format {
        DocumentFormat::Text => OutputContent::Text,
        DocumentFormat::Json => OutputContent::Document,
    })
}
