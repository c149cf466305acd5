//! The results of trials, as `docs/drivers.json` keeps them.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything that was tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// One entry for each libcuda.
    pub drivers: Vec<LibraryResult>,
    /// One entry for each libcudart.
    pub runtimes: Vec<LibraryResult>,
    /// UCX on each libcuda, in both orders.
    pub ucx: Vec<UcxResult>,
    /// NVML of each driver.
    pub nvml: Vec<NvmlResult>,
    /// Calls that succeed.
    pub gpu: Option<GpuResult>,
}

/// When, where and with which build something was tried.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circumstances {
    /// The day (UTC), such as `2026-11-22`.
    pub date: String,
    /// Such as `Linux 6.18.44`.
    pub kernel: String,
    /// The first 12 digits of the SHA-256 of the memprobe program.
    pub memprobe: String,
    /// The first 12 digits of the SHA-256 of its eBPF object.
    pub ebpf_object: String,
}

/// The probed functions of a library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LibraryResult {
    /// The library's version, by its maker.
    pub version: String,
    /// The package and the package's version.
    pub package: String,
    /// The libcuda beside which it was loaded, for a libcudart.
    pub driver: Option<String>,
    pub circumstances: Circumstances,
    /// The answer of `cuInit(0)` or `cudaGetLastError()`.
    pub first_answer: Option<i32>,
    pub functions: Vec<FunctionResult>,
    /// Anything that went wrong with the whole.
    pub complaints: Vec<String>,
}

/// One function that memprobe may probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionResult {
    /// The name in the library's symbol table.
    pub symbol: String,
    /// The symbol in the file; none where the library lacks the function.
    pub code: Option<Code>,
    /// The probe's place by `memprobe doctor`.
    pub place: Option<Place>,
    /// The words of `memprobe doctor` where there is no place.
    pub without_place: Option<String>,
    /// Runs of memprobe's BPF programs.
    pub runs: Option<Runs>,
    /// Uprobes of our own at the same place.
    pub watched: Option<Watched>,
    /// The value that it returned without probes and with them.
    pub returned: Option<Returned>,
    /// Nanoseconds a call.
    pub cost: Option<Cost>,
    /// End of the process that called it, if it died.
    pub died: Option<String>,
}

/// A function's symbol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// Bytes, by the symbol table.
    pub size: u64,
    /// The class of the first instruction.
    pub entry: String,
}

/// Place of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Bytes from the function's first instruction.
    pub offset: u64,
    /// The kernel emulates the instruction there.
    pub emulated: bool,
}

/// Run counts of memprobe's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs {
    pub calls: u64,
    pub entries: u64,
    pub returns: u64,
}

/// Samples of the kernel's uprobes at an entry and at the return of the same calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Calls.
    pub times: u64,
    /// Samples at the entry.
    pub entered: u64,
    /// Samples at the return.
    pub returned: u64,
    /// Calls whose six argument registers were right at the entry.
    pub arguments: u64,
    /// Calls whose result was right at the return.
    pub results: u64,
    /// Calls whose stack pointer at the return was that of the entry plus 8.
    pub stack_pointers: u64,
}

/// The values that a function returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    pub without: i32,
    pub with: Option<i32>,
    /// Each call returned the same.
    pub same: bool,
}

/// Nanoseconds a call, best of several loops.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub without: f64,
    pub with: Option<f64>,
}

/// UCX and memprobe in one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UcxResult {
    /// The version of libcuda.
    pub driver: String,
    /// The version of UCX.
    pub ucx: String,
    pub order: Order,
    pub circumstances: Circumstances,
    /// UCX's answer to the request to listen: 0 for success.
    pub hook: Option<i32>,
    /// Number of functions of libcuda that UCX says it rewrote.
    pub rewritten: Option<u32>,
    pub functions: Vec<UcxFunction>,
    /// memprobe's lines on what was rewritten.
    pub memprobe_says: Vec<String>,
    /// Unexpected end of the process.
    pub complaint: Option<String>,
}

/// Order of attaching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No memprobe: UCX hears of each call.
    UcxAlone,
    /// UCX rewrote the functions before memprobe attached.
    UcxFirst,
    /// memprobe's probes were there when UCX rewrote the functions.
    MemprobeFirst,
}

/// One function that UCX listens to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UcxFunction {
    pub symbol: String,
    /// The class of its first instruction.
    pub entry: String,
    pub place: Option<Place>,
    /// Its first bytes are not the file's, breakpoints aside.
    pub is_rewritten: bool,
    pub calls: u64,
    /// Calls that UCX reported.
    pub heard: u64,
    /// Runs of memprobe's BPF programs.
    pub runs: Option<Runs>,
    /// Calls that UCX reported after memprobe had taken its probes away, of as many.
    pub heard_after: Option<u64>,
    /// memprobe says that it was rewritten.
    pub is_said_rewritten: bool,
}

/// NVML without a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlResult {
    /// The driver's version.
    pub version: String,
    pub circumstances: Circumstances,
    /// Number of functions that the library exports.
    pub exported: u64,
    /// The answer of `nvmlInit_v2()`: 9 is "driver not loaded".
    pub init: Option<i32>,
    /// Exit status of `memprobe top --once` with this library.
    pub top_status: String,
    /// Its first lines.
    pub top_says: Vec<String>,
}

/// Calls that succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuResult {
    pub circumstances: Circumstances,
    /// The reason why no call was tried.
    pub absent: Option<String>,
    /// The driver that was called.
    pub driver: Option<String>,
    /// Bytes by kind of memory.
    pub kinds: Vec<GpuKind>,
    /// Functions that answered with an error, each with it.
    pub refused: Vec<String>,
    /// Anything that was not as it should be.
    pub complaints: Vec<String>,
}

/// Memory of one kind that is live at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuKind {
    pub kind: String,
    /// By the program's own count.
    pub held: u64,
    /// By memprobe's events.
    pub recorded: u64,
}

impl Runs {
    fn are_once_a_call(self) -> bool {
        self.calls > 0 && [self.entries, self.returns] == [self.calls; 2]
    }
}

impl FunctionResult {
    /// Entry and return program ran once a call.
    pub fn has_fired_once(&self) -> bool {
        self.runs.is_some_and(Runs::are_once_a_call)
    }

    /// Arguments, results and stack pointers were right in every call.
    pub fn is_right(&self) -> bool {
        self.watched.is_some_and(|it| {
            let seen = [
                it.entered,
                it.returned,
                it.arguments,
                it.results,
                it.stack_pointers,
            ];
            it.times > 0 && seen == [it.times; 5]
        }) && self
            .returned
            .is_some_and(|it| it.same && it.with == Some(it.without))
    }

    /// The place of the probe is emulated.
    pub fn is_emulated(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.emulated)
    }
}

impl UcxResult {
    /// A result in which nothing was tried yet.
    pub fn of(order: Order) -> Self {
        Self {
            driver: String::new(),
            ucx: String::new(),
            order,
            circumstances: Circumstances::default(),
            hook: None,
            rewritten: None,
            functions: Vec::new(),
            memprobe_says: Vec::new(),
            complaint: None,
        }
    }
}

impl UcxFunction {
    /// Entry and return program ran once a call.
    pub fn has_fired_once(&self) -> bool {
        self.runs.is_some_and(Runs::are_once_a_call)
    }

    /// UCX heard of each call, while memprobe was there and afterwards.
    pub fn is_heard(&self) -> bool {
        let after = self.heard_after.unwrap_or(self.calls);
        self.calls > 0 && [self.heard, after] == [self.calls; 2]
    }

    /// memprobe puts no probe there and says why.
    pub fn is_left_alone(&self) -> bool {
        self.is_said_rewritten && self.place.is_none()
    }
}

impl Results {
    /// Reads the file, if there is one.
    pub fn read(path: &Path) -> Result<Self> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} cannot be read: delete it", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        write_value(&mut text, &serde_json::to_value(self)?, 0);
        text.push('\n');
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Replaces earlier results of the same things, and sorts everything by version.
    pub fn put(&mut self, new: Self) {
        replace(&mut self.drivers, new.drivers, |it| {
            (versions(&it.version), 0)
        });
        replace(&mut self.runtimes, new.runtimes, |it| {
            (versions(&it.version), 0)
        });
        replace(&mut self.ucx, new.ucx, |it| {
            (versions(&it.driver), it.order as u8)
        });
        replace(&mut self.nvml, new.nvml, |it| (versions(&it.version), 0));
        if new.gpu.is_some() {
            self.gpu = new.gpu;
        }
    }
}

/// Depth in the file of a library's function, which is one line.
const LINE_DEPTH: usize = 4;

/// Writes a value with indentation down to the functions of a library, and each of those on one line.
fn write_value(text: &mut String, value: &Value, depth: usize) {
    let indented = |text: &mut String, depth: usize| {
        text.push('\n');
        text.push_str(&"  ".repeat(depth));
    };
    let count = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if depth >= LINE_DEPTH || count == 0 {
        *text += &value.to_string();
        return;
    }
    let is_array = value.is_array();
    text.push(if is_array { '[' } else { '{' });
    let fields = value.as_object().into_iter().flatten();
    let named = fields.map(|(name, value)| (Some(name), value));
    let items = value.as_array().into_iter().flatten().map(|it| (None, it));
    for (at, (name, value)) in named.chain(items).enumerate() {
        if at > 0 {
            text.push(',');
        }
        indented(text, depth + 1);
        if let Some(name) = name {
            *text += &format!("{}: ", Value::from(name.as_str()));
        }
        write_value(text, value, depth + 1);
    }
    indented(text, depth);
    text.push(if is_array { ']' } else { '}' });
}

fn replace<T>(old: &mut Vec<T>, new: Vec<T>, key: fn(&T) -> (Vec<u64>, u8)) {
    old.retain(|it| !new.iter().any(|other| key(other) == key(it)));
    old.extend(new);
    old.sort_by_key(key);
}

/// The numbers of a version.
fn versions(text: &str) -> Vec<u64> {
    text.split('.')
        .map(|number| number.parse().unwrap_or(0))
        .collect()
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// A function whose probe is right in each way.
    pub fn function(symbol: &str) -> FunctionResult {
        FunctionResult {
            symbol: symbol.to_owned(),
            code: Some(Code {
                size: 30,
                entry: "cmp mem, imm".to_owned(),
            }),
            place: Some(Place {
                offset: 10,
                emulated: true,
            }),
            without_place: None,
            runs: Some(Runs {
                calls: 16,
                entries: 16,
                returns: 16,
            }),
            watched: Some(Watched {
                times: 16,
                entered: 16,
                returned: 16,
                arguments: 16,
                results: 16,
                stack_pointers: 16,
            }),
            returned: Some(Returned {
                without: 3,
                with: Some(3),
                same: true,
            }),
            cost: Some(Cost {
                without: 7.0,
                with: Some(1050.0),
            }),
            died: None,
        }
    }

    /// A libcuda with these functions.
    pub fn driver(version: &str, functions: Vec<FunctionResult>) -> LibraryResult {
        LibraryResult {
            version: version.to_owned(),
            package: "libcuda1 1".to_owned(),
            driver: None,
            circumstances: Circumstances {
                date: "2026-11-22".to_owned(),
                kernel: "Linux 6.18.0".to_owned(),
                memprobe: "abc".to_owned(),
                ebpf_object: "def".to_owned(),
            },
            first_answer: Some(100),
            functions,
            complaints: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{driver, function};
    use super::*;

    #[test]
    fn a_probe_that_missed_or_doubled_a_call_is_not_right() {
        let right = function("cuMemFree_v2");
        assert!(right.has_fired_once() && right.is_right() && right.is_emulated());
        let mut twice = right.clone();
        twice.runs.as_mut().unwrap().entries = 32;
        assert!(!twice.has_fired_once());
        let mut wrong = right.clone();
        wrong.watched.as_mut().unwrap().arguments = 15;
        assert!(!wrong.is_right());
        let mut other = right;
        other.returned.as_mut().unwrap().with = Some(0);
        assert!(!other.is_right());
    }

    #[test]
    fn a_new_result_replaces_the_old_one_and_all_stay_in_order() {
        let mut results = Results::default();
        let of = |version: &str| Results {
            drivers: vec![driver(version, Vec::new())],
            ..Results::default()
        };
        results.put(of("555.58.02"));
        results.put(of("450.248.02"));
        let mut again = of("555.58.02");
        again.drivers[0].complaints.push("new".to_owned());
        results.put(again);
        let versions: Vec<_> = results.drivers.iter().map(|it| &*it.version).collect();
        assert_eq!(versions, ["450.248.02", "555.58.02"]);
        assert_eq!(results.drivers[1].complaints, ["new"]);
    }

    #[test]
    fn results_outlive_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drivers.json");
        let mut results = Results::read(&path).unwrap();
        assert_eq!(results, Results::default());
        results.drivers = vec![driver("555.58.02", vec![function("cuMemFree_v2")])];
        results.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), results);
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| line.contains("cuMemFree_v2"));
        assert_eq!(lines.count(), 1, "{text}");
        assert!(
            text.contains("\n      \"version\": \"555.58.02\""),
            "{text}"
        );
    }
}
