//! The results as a page of Markdown.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::faults::{faults, is_limit, must_be_single_stepped};
use super::results::{
    Circumstances, FunctionResult, GpuResult, LibraryResult, NvmlResult, Order, Results,
    UcxFunction, UcxResult,
};
use crate::markdown::wrapped;
use crate::pages::CommittedObject;

const INTRODUCTION: &str = "\
# NVIDIA's own libraries

Written by `cargo xtask drivers`, which downloads NVIDIA's user-space driver (libcuda, NVML; Debian's non-free
packages), CUDA runtimes and UCX (wheels), and calls every function that memprobe probes under `memprobe record --detail
full`. Nothing is disassembled: the class of a function's first instruction, which a uprobe replaces, is all that is
read of its code.

There was no GPU unless the last section says so: every call fails at once. memprobe reports only calls that succeed, so
the kernel is the witness: *fired once* means that memprobe's entry and return programs each ran once a call (run counts
of BPF programs); *right* means that uprobes of our own at the same place saw the right six argument registers, the
right result, and at the return the stack pointer of the entry plus 8, and that the function returned what it returns
without probes. Cost is nanoseconds a call, best of 60 short loops, without and with memprobe; a call that succeeds
costs more, as memprobe then sends a record.
";

/// The page.
pub fn render(results: &Results, committed: &CommittedObject) -> String {
    let mut page = INTRODUCTION.to_owned();
    page += &circumstances(results, committed);
    page += "\n## libcuda\n\n";
    page += &overview(&results.drivers);
    page += "\nPlace of each probe (bytes from the function's entry) and cost with memprobe. **Bold**: the kernel single-steps the instruction \
             there. `–`: the driver has no such function.\n\n";
    page += &functions(&results.drivers);
    page += &missing(&results.drivers);
    page += "\n## libcudart\n\nBeside the newest libcuda. A libcudart that is newer than the driver answers 35 to every call.\n\n";
    page += &overview(&results.runtimes);
    page += &missing(&results.runtimes);
    page += &ucx(&results.ucx);
    page += &nvml(&results.nvml);
    page += "\n## Calls that succeed\n\n";
    page += &results
        .gpu
        .as_ref()
        .map_or_else(|| "Not tried.\n".to_owned(), gpu);
    page += &limits(results);
    let faults = faults(results);
    page += "\n## Faults\n\n";
    if faults.is_empty() {
        page += "None.\n";
    }
    for fault in faults {
        let _ = writeln!(page, "* {}", cell(&fault));
    }
    wrapped(&page)
}

/// Functions that no placement of a probe saves from single-stepping.
fn limits(results: &Results) -> String {
    let mut text = String::new();
    for library in results.drivers.iter().chain(&results.runtimes) {
        let functions = library.functions.iter();
        let limited = functions.filter(|it| must_be_single_stepped(it));
        let symbols: Vec<&str> = limited.map(|it| it.symbol.as_str()).collect();
        if !symbols.is_empty() {
            let _ = writeln!(text, "* {}: {}", library.version, cell(&symbols.join(", ")));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!(
            "\n## Limits\n\nThe first instruction of these functions writes memory. The kernel emulates no such instruction, and a \
             probe behind it could miss an argument: they are single-stepped.\n\n{text}"
        ),
    }
}

/// When, where and with which builds.
fn circumstances(results: &Results, committed: &CommittedObject) -> String {
    let libraries = results.drivers.iter().chain(&results.runtimes);
    let all = libraries
        .map(|it| &it.circumstances)
        .chain(results.ucx.iter().map(|it| &it.circumstances))
        .chain(results.nvml.iter().map(|it| &it.circumstances))
        .chain(results.gpu.iter().map(|it| &it.circumstances));
    let objects = all.clone().map(|it| Some(it.ebpf_object.as_str()));
    let note = committed.note(objects);
    let lines: BTreeSet<String> = all
        .map(|it: &Circumstances| {
            format!(
                "{}, {}, memprobe {}, eBPF object {}{}",
                it.date,
                it.kernel,
                it.memprobe,
                it.ebpf_object,
                committed.mark(Some(&it.ebpf_object))
            )
        })
        .collect();
    let mut text = String::from("\nTried: ");
    text += &lines.into_iter().collect::<Vec<_>>().join("; ");
    text + ".\n" + &note + "\n"
}

/// A row for each library.
fn overview(libraries: &[LibraryResult]) -> String {
    let mut text = String::from(
        "| version | package | first answer | functions there | probed | emulated | fired once | right | first instructions | ns without | \
         ns with |\n|---|---|---:|---:|---:|---:|---:|---:|---|---|---|\n",
    );
    for library in libraries {
        let there = present(library);
        let probed = || there.iter().filter(|it| it.place.is_some());
        let costs = |pick: &dyn Fn(&FunctionResult) -> Option<f64>| {
            range(probed().filter_map(|it| pick(it)))
        };
        let package = match &library.driver {
            Some(driver) => format!("{}, driver {driver}", library.package),
            None => library.package.clone(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            library.version,
            package,
            library
                .first_answer
                .map_or_else(|| "–".to_owned(), |answer| answer.to_string()),
            there.len(),
            probed().count(),
            probed().filter(|it| it.is_emulated()).count(),
            probed().filter(|it| it.has_fired_once()).count(),
            probed().filter(|it| it.is_right()).count(),
            entries(&there),
            costs(&|it| it.cost.map(|cost| cost.without)),
            costs(&|it| it.cost.and_then(|cost| cost.with)),
        );
    }
    text
}

/// The functions that the library has.
pub fn present(library: &LibraryResult) -> Vec<&FunctionResult> {
    let functions = library.functions.iter();
    functions.filter(|it| it.code.is_some()).collect()
}

/// The classes of first instructions, the most frequent first, with sizes.
fn entries(functions: &[&FunctionResult]) -> String {
    let codes = || functions.iter().filter_map(|it| it.code.as_ref());
    let classes: BTreeSet<&str> = codes().map(|code| code.entry.as_str()).collect();
    let mut counted: Vec<(usize, &str)> = classes
        .into_iter()
        .map(|class| (codes().filter(|code| code.entry == class).count(), class))
        .collect();
    counted.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let classes: Vec<String> = counted
        .into_iter()
        .map(|(count, class)| format!("`{class}` {count}"))
        .collect();
    let sizes = codes().map(|code| code.size);
    match (sizes.clone().min(), sizes.max()) {
        (Some(least), Some(most)) if least == most => {
            format!("{}; {least} bytes each", classes.join(", "))
        }
        (Some(least), Some(most)) => format!("{}; {least} to {most} bytes", classes.join(", ")),
        _ => "–".to_owned(),
    }
}

fn range(values: impl Iterator<Item = f64>) -> String {
    let values: Vec<f64> = values.collect();
    if values.is_empty() {
        return "–".to_owned();
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{least:.0} to {most:.0}")
}

/// A row for each function, a column for each library.
fn functions(libraries: &[LibraryResult]) -> String {
    let versions: Vec<&str> = libraries.iter().map(|it| it.version.as_str()).collect();
    let mut text = format!(
        "| function | {} |\n|---|{}\n",
        versions.join(" | "),
        "---|".repeat(versions.len())
    );
    for symbol in symbols(libraries) {
        let cells: Vec<String> = libraries
            .iter()
            .map(|library| {
                let function = library.functions.iter().find(|it| it.symbol == symbol);
                function.map_or_else(|| "–".to_owned(), place)
            })
            .collect();
        let _ = writeln!(text, "| `{symbol}` | {} |", cells.join(" | "));
    }
    text
}

/// Every function of a group of libraries, each once.
fn symbols(libraries: &[LibraryResult]) -> Vec<&str> {
    let mut symbols: Vec<&str> = Vec::new();
    for function in libraries.iter().flat_map(|library| &library.functions) {
        if !symbols.contains(&function.symbol.as_str()) {
            symbols.push(&function.symbol);
        }
    }
    symbols
}

/// Place and cost of one probe.
fn place(function: &FunctionResult) -> String {
    if function.code.is_none() {
        return "–".to_owned();
    }
    let Some(place) = &function.place else {
        return "not probed".to_owned();
    };
    let cost = function
        .cost
        .and_then(|cost| cost.with)
        .map_or_else(String::new, |ns| format!(", {ns:.0} ns"));
    match place.emulated {
        true => format!("+{}{cost}", place.offset),
        false => format!("**+{}{cost}**", place.offset),
    }
}

/// Functions that a library lacks.
fn missing(libraries: &[LibraryResult]) -> String {
    let mut text = String::from("\nFunctions of memprobe's catalogue that a version lacks:\n\n");
    for library in libraries {
        let lacking: Vec<String> = library
            .functions
            .iter()
            .filter(|it| it.code.is_none())
            .map(|it| format!("`{}`", it.symbol))
            .collect();
        let lacking = match lacking.is_empty() {
            true => "none".to_owned(),
            false => lacking.join(", "),
        };
        let _ = writeln!(text, "* {}: {lacking}", library.version);
    }
    text
}

fn ucx(results: &[UcxResult]) -> String {
    let version = results.last().map_or("", |it| it.ucx.as_str());
    let mut text = format!(
        "\n## UCX {version}\n\n\
         UCX rewrites the first 5 bytes of libcuda's functions in its process to see their calls. The functions called here free memory: UCX \
         reports these calls even if they fail. *heard*: functions whose every call UCX reported, while memprobe was attached and after it had \
         left; *fired once*: functions for which memprobe's programs ran once a call; *said*: rewritten functions, as memprobe reports them; *left \
         alone*: rewritten functions without a probe.\n\n\
         | driver | order | UCX's answer | functions UCX rewrote | called (first instruction) | heard | probes | fired once | said | left \
         alone | process |\n|---|---|---:|---:|---|---:|---|---:|---:|---:|---|\n"
    );
    for result in results {
        let number =
            |value: Option<i64>| value.map_or_else(|| "–".to_owned(), |value| value.to_string());
        let all = result.functions.len();
        let count = |wanted: &dyn Fn(&UcxFunction) -> bool| {
            result.functions.iter().filter(|it| wanted(it)).count()
        };
        let heard = match count(&UcxFunction::is_heard) {
            heard if heard == all => heard.to_string(),
            heard => format!("**{heard}**"),
        };
        let entries: BTreeSet<&str> = result.functions.iter().map(|it| &*it.entry).collect();
        let entries: Vec<&str> = entries.into_iter().collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {all} (`{}`) | {heard} | {} | {} | {} | {} | {} |",
            result.driver,
            order(result.order),
            number(result.hook.map(i64::from)),
            number(result.rewritten.map(i64::from)),
            entries.join("`, `"),
            places(&result.functions),
            count(&UcxFunction::has_fired_once),
            count(&|it| it.is_said_rewritten),
            count(&UcxFunction::is_left_alone),
            result
                .complaint
                .as_deref()
                .map_or_else(|| "lived".to_owned(), |how| format!("**{}**", cell(how))),
        );
    }
    for result in results.iter().filter(|it| is_limit(it)) {
        let _ = writeln!(
            text,
            "\nLimit: with driver {} UCX cannot place its hooks ({}) once memprobe's probes are there, as both need the first bytes of these \
             functions. Attach after UCX has started, or give memprobe `--no-driver`.",
            result.driver,
            result.hook.unwrap_or_default()
        );
    }
    text
}

/// The places of probes, each once.
fn places(functions: &[UcxFunction]) -> String {
    let places: BTreeSet<String> = functions
        .iter()
        .filter_map(|it| it.place.as_ref())
        .map(|place| match place.emulated {
            true => format!("+{}", place.offset),
            false => format!("+{} single-stepped", place.offset),
        })
        .collect();
    match places.is_empty() {
        true => "none".to_owned(),
        false => places.into_iter().collect::<Vec<_>>().join(", "),
    }
}

pub fn order(order: Order) -> &'static str {
    match order {
        Order::UcxAlone => "UCX alone",
        Order::UcxFirst => "UCX, then memprobe",
        Order::MemprobeFirst => "memprobe, then UCX",
    }
}

fn nvml(results: &[NvmlResult]) -> String {
    let mut text = String::from(
        "\n## NVML\n\nWithout a GPU `nvmlInit_v2` answers 9 (driver not loaded). `memprobe top --once` is run with this library first on \
         `LD_LIBRARY_PATH`.\n\n\
         | driver | functions exported | nvmlInit_v2 | top --once | top says |\n|---|---:|---:|---|---|\n",
    );
    for result in results {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            result.version,
            result.exported,
            result
                .init
                .map_or_else(|| "–".to_owned(), |answer| answer.to_string()),
            result.top_status,
            cell(&result.top_says.join(" / ")),
        );
    }
    text
}

/// The calls that succeed.
pub fn gpu(result: &GpuResult) -> String {
    if let Some(reason) = &result.absent {
        return format!(
            "{reason}. Not seen: the results and sizes that memprobe reads after a call has succeeded, calls within calls (the runtime's into \
             the driver), and the cost of a record.\n"
        );
    }
    let mut text = format!(
        "Driver {}. Live at the end, by the program's own count and by memprobe's events:\n\n\
         | memory | held | recorded |\n|---|---:|---:|\n",
        result.driver.as_deref().unwrap_or("unknown")
    );
    for kind in &result.kinds {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            kind.kind, kind.held, kind.recorded
        );
    }
    if !result.refused.is_empty() {
        let _ = writeln!(
            text,
            "\nCalls that failed (function, error): {}.",
            result.refused.join(", ")
        );
    }
    for complaint in &result.complaints {
        let _ = writeln!(text, "\n**{}**", cell(complaint));
    }
    text
}

/// A library's result, for the terminal.
pub fn in_a_line(library: &LibraryResult) -> String {
    let there = present(library);
    let count = |wanted: &dyn Fn(&FunctionResult) -> bool| {
        there
            .iter()
            .filter(|it| it.place.is_some() && wanted(it))
            .count()
    };
    format!(
        "{} functions, {} probed: {} emulated, {} fired once a call, {} right",
        there.len(),
        count(&|_| true),
        count(&FunctionResult::is_emulated),
        count(&FunctionResult::has_fired_once),
        count(&FunctionResult::is_right),
    )
}

/// A result with UCX, for the terminal.
pub fn ucx_in_a_line(result: &UcxResult) -> String {
    let heard = result.functions.iter().filter(|it| it.is_heard()).count();
    format!(
        "{}: answer {:?}, {} of {} functions heard{}",
        order(result.order),
        result.hook,
        heard,
        result.functions.len(),
        result
            .complaint
            .as_ref()
            .map(|how| format!("; {how}"))
            .unwrap_or_default()
    )
}

/// A text that fits into a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::super::results::samples::{driver, function};
    use super::super::results::{Code, GpuKind, Place, Runs};
    use super::*;

    fn committed() -> CommittedObject {
        CommittedObject::named("def")
    }

    #[test]
    fn a_library_whose_probes_are_right_has_no_fault() {
        let results = Results {
            drivers: vec![driver("555.58.02", vec![function("cuMemFree_v2")])],
            ..Results::default()
        };
        assert_eq!(faults(&results), Vec::<String>::new());
        let page = render(&results, &committed());
        assert!(
            page.contains(
                "| 555.58.02 | libcuda1 1 | 100 | 1 | 1 | 1 | 1 | 1 | `cmp mem, imm` 1; 30 bytes each | 7 to 7 | 1050 to 1050 |"
            ),
            "{page}"
        );
        assert!(page.contains("| `cuMemFree_v2` | +10, 1050 ns |"), "{page}");
        assert!(page.ends_with("## Faults\n\nNone.\n"), "{page}");
    }

    #[test]
    fn single_stepped_missing_and_doubled_functions_are_named() {
        let mut slow = function("cuMemFree_v2");
        slow.place = Some(Place {
            offset: 0,
            emulated: false,
        });
        let mut twice = function("cuMemMap");
        twice.runs = Some(Runs {
            calls: 16,
            entries: 32,
            returns: 16,
        });
        let mut absent = function("cuCtxCreate_v4");
        absent.code = None;
        absent.place = None;
        let results = Results {
            drivers: vec![driver("550.163.01", vec![slow, twice, absent])],
            ..Results::default()
        };
        assert_eq!(
            faults(&results),
            [
                "libcuda 550.163.01: single-stepped: cuMemFree_v2",
                "libcuda 550.163.01: not fired once a call: cuMemMap"
            ]
        );
        let page = render(&results, &committed());
        assert!(
            page.contains("| `cuMemFree_v2` | **+0, 1050 ns** |"),
            "{page}"
        );
        assert!(page.contains("| `cuCtxCreate_v4` | – |"), "{page}");
        assert!(page.contains("* 550.163.01: `cuCtxCreate_v4`\n"), "{page}");
    }

    #[test]
    fn entries_are_counted_by_class() {
        let mut other = function("cuMemFree_v2");
        other.code = Some(Code {
            size: 600,
            entry: "push reg".to_owned(),
        });
        let both = [&function("cuMemMap"), &function("cuMemUnmap"), &other];
        assert_eq!(
            entries(&both),
            "`cmp mem, imm` 2, `push reg` 1; 30 to 600 bytes"
        );
    }

    fn ucx_result(order: Order, hook: i32, heard: u64) -> UcxResult {
        UcxResult {
            driver: "550.163.01".to_owned(),
            hook: Some(hook),
            rewritten: Some(15),
            functions: vec![UcxFunction {
                symbol: "cuMemFree_v2".to_owned(),
                entry: "cmp mem, imm".to_owned(),
                place: None,
                is_rewritten: true,
                calls: 16,
                heard,
                heard_after: None,
                runs: None,
                is_said_rewritten: false,
            }],
            ..UcxResult::of(order)
        }
    }

    #[test]
    fn a_first_instruction_that_writes_memory_is_a_limit() {
        let mut written = function("cuMemMap");
        written.place = Some(Place {
            offset: 0,
            emulated: false,
        });
        let results = |entry: &str| {
            let mut written = written.clone();
            written.code = Some(Code {
                size: 507,
                entry: entry.to_owned(),
            });
            Results {
                drivers: vec![driver("450.248.02", vec![written])],
                ..Results::default()
            }
        };
        let limited = results("mov mem, reg");
        assert_eq!(faults(&limited), Vec::<String>::new());
        let page = render(&limited, &committed());
        assert!(page.contains("\n* 450.248.02: cuMemMap\n"), "{page}");
        assert_eq!(faults(&results("sub rsp, imm")).len(), 1);
    }

    #[test]
    fn a_hook_that_is_jumped_over_is_a_fault() {
        let results = Results {
            ucx: vec![
                ucx_result(Order::UcxAlone, 0, 16),
                ucx_result(Order::UcxFirst, 0, 0),
                ucx_result(Order::MemprobeFirst, -22, 0),
            ],
            ..Results::default()
        };
        assert_eq!(
            faults(&results),
            [
                "UCX, driver 550.163.01, UCX, then memprobe: UCX does not hear of cuMemFree_v2",
                "UCX, driver 550.163.01, memprobe, then UCX: UCX cannot place its hooks (-22)"
            ]
        );
        let page = render(&results, &committed());
        let row = "| UCX, then memprobe | 0 | 15 | 1 (`cmp mem, imm`) | **0** | none | 0 | 0 | 0 | lived |";
        assert!(page.contains(row), "{page}");
    }

    #[test]
    fn an_order_that_cannot_work_is_a_limit_and_no_fault() {
        let mut result = ucx_result(Order::MemprobeFirst, -22, 0);
        result.functions[0].entry = "push reg".to_owned();
        let mut results = Results {
            ucx: vec![result],
            ..Results::default()
        };
        assert_eq!(faults(&results), Vec::<String>::new());
        assert!(render(&results, &committed()).contains("Limit: with driver 550.163.01 "));
        results.ucx[0].complaint = Some("signal: 11 (SIGSEGV)".to_owned());
        assert!(!faults(&results).is_empty());
    }

    #[test]
    fn without_a_gpu_the_page_says_what_was_not_seen() {
        let mut result = GpuResult {
            circumstances: Circumstances::default(),
            absent: Some("no GPU here: success paths not seen".to_owned()),
            driver: None,
            kinds: Vec::new(),
            refused: Vec::new(),
            complaints: Vec::new(),
        };
        assert!(gpu(&result).starts_with("no GPU here: success paths not seen. Not seen: "));
        result.absent = None;
        result.kinds = vec![GpuKind {
            kind: "device".to_owned(),
            held: 7,
            recorded: 7,
        }];
        assert!(gpu(&result).contains("| device | 7 | 7 |"));
    }
}
