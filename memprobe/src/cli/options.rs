//! Options that several verbs share: same name, same short form, same meaning everywhere.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, ValueEnum};

use crate::commands::stdout;
use crate::commands::{
    Allocators, BaselineReading, CommandUser, Detail, DriverCalls, GraphTracking, Naming,
    ThemeChoice,
};
use crate::event::bytes::human;
use crate::event::{Bytes, TimeShare};
use crate::report::{Colour, DocumentFormat, HostExtent, HostOptions, ReportOptions, RowLimit};

/// Lists the values of an option: word, meaning and help, one a line.
macro_rules! choices {
    ($($word:literal => $value:expr, $help:literal;)*) => { &[$(($word, $value, $help)),*] };
}
pub(super) use choices;

/// `--detail`.
#[derive(Args, Clone, Copy)]
pub(super) struct DetailOption {
    /// Detail of each block. Cost to the process: `tensors` a trap for each new tensor, `full` also a copy of the stack
    /// for each block without a tensor
    #[arg(long, default_value = "lines", value_parser = choice(DETAILS))]
    pub(super) detail: Detail,
}

const DETAILS: &[Choice<Detail>] = choices! {
    "lines" => Detail::Lines, "The line that allocated it";
    "tensors" => Detail::Tensors, "Also shape, dtype and requested bytes of the tensor";
    "full" => Detail::Full, "Also the purpose of blocks without a tensor: workspace of a library, resized storage, \
        scratch";
};

/// Value of an option: its word, its meaning, and its help.
pub(super) type Choice<T> = (&'static str, T, &'static str);

pub(super) fn choice<T>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    let words = choices
        .iter()
        .map(|(word, _, help)| PossibleValue::new(*word).help(*help));
    let parser = PossibleValuesParser::new(words);
    parser.try_map(|given| {
        let chosen = choices.iter().find(|(word, ..)| *word == given);
        chosen
            .map(|(_, value, _)| value.clone())
            .ok_or("no such value")
    })
}

/// `--theme`.
#[derive(Args, Clone, Copy)]
pub(super) struct ThemeOption {
    /// Colours of the screen
    #[arg(long, default_value = "auto", value_parser = choice(THEMES))]
    pub(super) theme: ThemeChoice,
}

const THEMES: &[Choice<ThemeChoice>] = choices! {
    "auto" => ThemeChoice::Auto, "By the terminal's answer about its background, else by COLORFGBG; without both, colours \
        that are legible on dark and light backgrounds. None with NO_COLOR";
    "dark" => ThemeChoice::Dark, "For a dark background";
    "light" => ThemeChoice::Light, "For a light background";
    "none" => ThemeChoice::None, "No colours";
};

/// `--graph`, `--no-graph`, `--no-driver` and `--buffer-size`.
#[derive(Args, Clone, Copy)]
pub(super) struct ProbeOptions {
    /// Attribute memory of backward passes to lines of the forward pass
    #[arg(long, overrides_with = "no_graph")]
    graph: bool,
    /// Attribute it to the line that calls backward(). Saves the process a trap for each operation of autograd
    #[arg(long, overrides_with = "graph")]
    no_graph: bool,
    #[command(flatten)]
    driver: DriverOption,
    /// Most of a process's time that the probes may take, such as 1%, or off
    ///
    /// memprobe estimates its share: traps and programs, against the time that passes. Above the budget it records less,
    /// in this order: no shapes, no graph, no modules, and then no events for a while, after which it reads the live
    /// blocks from the allocator's tables. Totals stay right; blocks that came and went meanwhile are missing. It says so
    /// on the screen, in recordings and in reports.
    #[arg(long, value_name = "PERCENT", default_value = "off", value_parser = parse_overhead)]
    max_overhead: MaxOverhead,
    #[command(flatten)]
    buffer: BufferOption,
}

/// Value of `--max-overhead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaxOverhead {
    Off,
    Share(TimeShare),
}

impl MaxOverhead {
    pub(super) fn share(self) -> Option<TimeShare> {
        match self {
            Self::Off => None,
            Self::Share(share) => Some(share),
        }
    }
}

/// Refuses `--cpu` beside `--max-overhead`: PyTorch's CPU allocator keeps no table from which memprobe could catch up.
pub(super) fn without_cpu(arg: Arg) -> Arg {
    arg.conflicts_with("cpu")
}

/// `--no-driver`.
#[derive(Args, Clone, Copy)]
pub(super) struct DriverOption {
    /// Put no probe into libcuda. For processes in which another tool rewrites its functions (UCX in NIXL, UCC and Open
    /// MPI); CUDA memory of NCCL, cuBLAS and the like is then not seen
    #[arg(long)]
    no_driver: bool,
}

impl DriverOption {
    pub(super) fn calls(self) -> DriverCalls {
        if self.no_driver {
            DriverCalls::LeftAlone
        } else {
            DriverCalls::Probed
        }
    }
}

impl ProbeOptions {
    pub(super) fn graph_or(self, default: GraphTracking) -> GraphTracking {
        match (self.graph, self.no_graph) {
            (true, _) => GraphTracking::On,
            (_, true) => GraphTracking::Off,
            (false, false) => default,
        }
    }

    pub(super) fn driver(self) -> DriverCalls {
        self.driver.calls()
    }

    pub(super) fn max_overhead(self) -> Option<TimeShare> {
        self.max_overhead.share()
    }

    pub(super) fn ring_bytes(self) -> u32 {
        self.buffer.buffer_size
    }
}

/// `--names` and `--no-names`.
#[derive(Args, Clone, Copy)]
pub(super) struct NamesOption {
    /// Read the objects of each process now and then: names and kinds of tensors, and what keeps them alive
    ///
    /// Each reading pauses the process for a fraction of a second. memprobe reads at the first call of a module, at
    /// optimizer steps 2, 16, 128 and so on, and at the end of a recording that ends before the process.
    #[arg(long, overrides_with = "no_names")]
    names: bool,
    /// Never read the objects of a process
    #[arg(long, overrides_with = "names")]
    no_names: bool,
}

impl NamesOption {
    pub(super) fn naming_or(self, default: Naming) -> Naming {
        match (self.names, self.no_names) {
            (true, _) => Naming::NowAndThen,
            (_, true) => Naming::Off,
            (false, false) => default,
        }
    }

    /// Reading of the objects that hold memory from before attach. The readings of `--names` name that memory, too.
    pub(super) fn baseline(self, pause: PauseOption) -> BaselineReading {
        match pause.reading() {
            _ if self.no_names => BaselineReading::Off,
            BaselineReading::Running if self.names => BaselineReading::Off,
            reading => reading,
        }
    }
}

/// `--no-names` and `--pause` of the live screens.
#[derive(Args, Clone, Copy)]
pub(super) struct BaselineOption {
    /// Do not read the objects of the process to name memory from before attach
    #[arg(long)]
    no_names: bool,
    #[command(flatten)]
    pause: PauseOption,
}

impl BaselineOption {
    pub(super) fn reading(self) -> BaselineReading {
        match self.no_names {
            true => BaselineReading::Off,
            false => self.pause.reading(),
        }
    }
}

/// `--pause`.
#[derive(Args, Clone, Copy)]
pub(super) struct PauseOption {
    /// Pause the process while its objects are read to name memory from before attach
    ///
    /// The names are then of one moment. Without it, the process runs on: memprobe reads twice, and what both readings
    /// agree on counts.
    #[arg(long, conflicts_with = "no_names")]
    pause: bool,
}

impl PauseOption {
    pub(super) fn reading(self) -> BaselineReading {
        match self.pause {
            true => BaselineReading::Paused,
            false => BaselineReading::Running,
        }
    }
}

/// `--cpu`.
#[derive(Args, Clone, Copy)]
pub(super) struct CpuOption {
    /// Also CPU tensors, as a device of their own; works without CUDA
    #[arg(long)]
    cpu: bool,
}

impl CpuOption {
    pub(super) fn allocators(self) -> Allocators {
        if self.cpu {
            Allocators::CudaAndCpu
        } else {
            Allocators::Cuda
        }
    }
}

/// `--as-root`.
#[derive(Args, Clone, Copy)]
pub(super) struct AsRootOption {
    /// Run the command as root. Without it, a command under sudo runs as the user who called sudo
    #[arg(long, requires = "command")]
    as_root: bool,
}

impl AsRootOption {
    pub(super) fn user(self) -> CommandUser {
        if self.as_root {
            CommandUser::Same
        } else {
            CommandUser::Caller
        }
    }
}

/// `--buffer-size`.
#[derive(Args, Clone, Copy)]
pub(super) struct BufferOption {
    /// Room for unread events; raise it if events are lost
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_buffer_size)]
    pub(super) buffer_size: u32,
}

/// `--format`. A verb that writes fewer formats than all says so with [`formats`].
#[derive(Args, Clone, Copy)]
pub(super) struct FormatOption {
    /// Output format
    #[arg(short, long)]
    pub(super) format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people (default)
    Text,
    /// One JSON document
    Json,
    /// One JSON object a row
    Jsonl,
    /// Comma-separated values
    Csv,
}

impl FormatOption {
    pub(super) fn or_text(self) -> Format {
        self.format.unwrap_or(Format::Text)
    }
}

/// Limits `--format` to what a verb writes.
pub(super) fn formats(allowed: &'static [Format]) -> impl FnOnce(Arg) -> Arg {
    let names = allowed.iter().filter_map(Format::to_possible_value);
    let names = PossibleValuesParser::new(names);
    move |arg| arg.value_parser(names.try_map(move |name| Format::from_str(&name, false)))
}

/// Marks a flag as the default in its help.
pub(super) fn is_default(arg: Arg) -> Arg {
    let help = arg.get_help().map(ToString::to_string);
    arg.help(format!("{} [default]", help.unwrap_or_default()))
}

/// `--limit`.
#[derive(Args, Clone, Copy)]
pub(super) struct LimitOption {
    /// Rows of each table, or `all`
    #[arg(short = 'n', long, value_name = "N|all", value_parser = parse_limit)]
    pub(super) limit: Option<RowLimit>,
}

/// `--no-fold`.
#[derive(Args, Clone, Copy)]
pub(super) struct FoldOption {
    /// Show equal rows one by one, instead of one row for all
    #[arg(long)]
    pub(super) no_fold: bool,
}

pub(super) struct StdoutStyle {
    /// `None` if standard output is no terminal.
    pub(super) columns: Option<usize>,
    pub(super) colour: Colour,
}

impl StdoutStyle {
    pub(super) fn detect() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        Self {
            columns: (columns > 0).then_some(columns),
            colour: if wanted && stdout::is_terminal() {
                Colour::Ansi
            } else {
                Colour::Plain
            },
        }
    }
}

impl StdoutStyle {
    /// Returns the options of a text about processes.
    pub(super) fn host_options(&self) -> HostOptions {
        HostOptions {
            format: DocumentFormat::Text,
            extent: HostExtent::Holders,
            width: self.columns,
            colour: self.colour,
        }
    }

    /// Returns the options of a text about one process.
    pub(super) fn report_options(&self) -> ReportOptions {
        let default = ReportOptions::default();
        ReportOptions {
            width: self.columns.unwrap_or(default.width),
            colour: self.colour,
            ..default
        }
    }
}

pub(super) fn parse_pid(text: &str) -> Result<u32, String> {
    let give = "give the number of one running process, such as 1234; `pgrep -f train.py` finds it";
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| give.to_owned())
}

fn parse_limit(text: &str) -> Result<RowLimit, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(RowLimit::All),
        (_, Ok(rows)) if rows > 0 => Ok(RowLimit::Rows(rows)),
        _ => Err("give a number of rows from 1 up, or all".to_owned()),
    }
}

pub(super) fn parse_depth(text: &str) -> Result<usize, String> {
    let give = "give a number of levels, such as 2; 0 shows the outermost modules";
    text.parse().map_err(|_| give.to_owned())
}

/// Parses a duration: `30s`, `5m`, `1h 30m`, or a plain number of seconds.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    const GIVE: &str = "give a time such as 30s, 5m or 1h";
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| GIVE.to_owned());
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; {GIVE}"))
}

/// Parses a size: `8MiB`, `24 GB`, `64M`, or a plain number of bytes.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let size = text.trim().parse::<bytesize::ByteSize>();
    size.map(|size| size.as_u64()).map_err(|_| {
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || ". ".contains(c));
        let wrong = if unit.len() == text.len() {
            format!("{text:?} does not begin with a number")
        } else {
            format!("{unit:?} is no unit of bytes")
        };
        format!("{wrong}: give a number and a unit (KiB, MiB, GiB, TiB, KB, MB, GB, TB), such as 64MiB, or bytes")
    })
}

/// Parses a share of time: `1%`, `0.5 %`, or `off`.
pub(super) fn parse_overhead(text: &str) -> Result<MaxOverhead, String> {
    const GIVE: &str = "give percent from 0.1% to 100%, such as 1%, or off";
    if text == "off" {
        return Ok(MaxOverhead::Off);
    }
    let percent = text.strip_suffix('%').map(str::trim_end);
    let percent = percent.and_then(|percent| percent.parse::<f64>().ok());
    match percent.filter(|percent| (0.1..=100.0).contains(percent)) {
        Some(percent) => Ok(MaxOverhead::Share(TimeShare::from_ratio(percent / 100.0))),
        None => Err(GIVE.to_owned()),
    }
}

/// Parses a size of the ring buffer.
fn parse_buffer_size(text: &str) -> Result<u32, String> {
    const MOST: u64 = 1 << 30;
    let bytes = parse_size(text)?;
    match u32::try_from(bytes) {
        Ok(size) if (4096..=MOST).contains(&bytes) => Ok(size),
        _ => {
            let given = human(Bytes(bytes));
            Err(format!(
                "{given} is out of range: give 4 KiB to 1 GiB, such as 64MiB"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_people_write_them() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        for wrong in ["-1", "soon"] {
            let error = parse_duration(wrong).unwrap_err();
            assert!(
                error.ends_with("give a time such as 30s, 5m or 1h"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_budget_is_percent_or_off() {
        let share = |ppm| Ok(MaxOverhead::Share(TimeShare(ppm)));
        assert_eq!(parse_overhead("1%"), share(10_000));
        assert_eq!(parse_overhead("0.5 %"), share(5_000));
        assert_eq!(parse_overhead("off"), Ok(MaxOverhead::Off));
        for wrong in ["1", "0%", "0.01%", "101%", "-1%", "nan%", "one%"] {
            assert!(
                parse_overhead(wrong)
                    .unwrap_err()
                    .starts_with("give percent")
            );
        }
    }

    #[test]
    fn ring_buffer_sizes_are_bounded() {
        assert_eq!(parse_buffer_size("8MiB"), Ok(8 << 20));
        for (wrong, given) in [("1", "1 B"), ("2GiB", "2.00 GiB"), ("0", "0 B")] {
            let error = parse_buffer_size(wrong).unwrap_err();
            assert!(
                error.starts_with(given) && error.contains("4 KiB to 1 GiB"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_size_that_cannot_be_parsed_says_which_text_and_what_is_expected() {
        assert_eq!(parse_size("24 GiB"), Ok(24 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        for (wrong, part) in [
            ("much", "\"much\" does not begin with a number"),
            ("", "\"\" does not begin with a number"),
            ("8 parsecs", "\"parsecs\" is no unit of bytes"),
            ("-5MiB", "\"-5MiB\" does not begin with a number"),
        ] {
            let error = parse_size(wrong).unwrap_err();
            assert!(error.starts_with(part), "{error}");
            assert!(error.contains("such as 64MiB"), "{error}");
        }
    }

    #[test]
    fn limits_are_a_number_of_rows_or_all() {
        assert_eq!(parse_limit("3"), Ok(RowLimit::Rows(3)));
        assert_eq!(parse_limit("all"), Ok(RowLimit::All));
        for wrong in ["0", "-1", "many"] {
            assert!(parse_limit(wrong).unwrap_err().starts_with("give "));
        }
    }

    #[test]
    fn processes_are_named_by_number() {
        assert_eq!(parse_pid("1234"), Ok(1234));
        for wrong in ["0", "train.py", "1234\n1235"] {
            assert!(parse_pid(wrong).unwrap_err().starts_with("give "));
        }
    }
}
