//! Deviations from the expected results.

use super::page::{order, present};
use super::results::{FunctionResult, LibraryResult, Order, Results, UcxFunction, UcxResult};

/// Everything that is not as it should be, a line each.
pub fn faults(results: &Results) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, libraries) in [
        ("libcuda", &results.drivers),
        ("libcudart", &results.runtimes),
    ] {
        for library in libraries {
            library_faults(name, library, &mut faults);
        }
    }
    for result in &results.ucx {
        ucx_faults(result, &mut faults);
    }
    for result in &results.nvml {
        if result.top_status.contains("signal") {
            faults.push(format!(
                "NVML {}: memprobe top ended with {}",
                result.version, result.top_status
            ));
        }
    }
    if let Some(gpu) = &results.gpu {
        faults.extend(gpu.complaints.iter().map(|it| format!("GPU: {it}")));
    }
    faults
}

fn library_faults(name: &str, library: &LibraryResult, faults: &mut Vec<String>) {
    let mut fault = |words: String| faults.push(format!("{name} {}: {words}", library.version));
    for complaint in &library.complaints {
        fault(complaint.clone());
    }
    let there = present(library);
    let named = |wanted: &dyn Fn(&FunctionResult) -> bool| -> Vec<&str> {
        let found = there.iter().filter(|it| wanted(it));
        found.map(|it| it.symbol.as_str()).collect()
    };
    let probed = |it: &FunctionResult| it.place.is_some();
    for (words, symbols) in [
        ("not probed", named(&|it| !probed(it))),
        (
            "single-stepped",
            named(&|it| probed(it) && !it.is_emulated() && !must_be_single_stepped(it)),
        ),
        (
            "not fired once a call",
            named(&|it| probed(it) && !it.has_fired_once()),
        ),
        (
            "arguments, result or stack pointer not right",
            named(&|it| probed(it) && !it.is_right()),
        ),
    ] {
        match symbols.as_slice() {
            [] => {}
            all if all.len() == there.len() => fault(format!("{words}: all {}", all.len())),
            some => fault(format!("{words}: {}", some.join(", "))),
        }
    }
    for function in &library.functions {
        if let Some(how) = &function.died {
            fault(format!("{}: {how}", function.symbol));
        }
    }
}

/// The function's first instruction writes memory, so no later one may carry the probe, and the kernel emulates no
/// such instruction.
pub fn must_be_single_stepped(function: &FunctionResult) -> bool {
    let first = function.code.as_ref().map(|code| code.entry.as_str());
    let place = function.place.as_ref();
    first == Some("mov mem, reg") && place.is_some_and(|place| place.offset == 0 && !place.emulated)
}

/// UCX cannot rewrite a function whose first bytes hold a breakpoint, and there is no other place for a probe in a function
/// that is no trampoline.
pub fn is_limit(result: &UcxResult) -> bool {
    let is_trampoline = |it: &UcxFunction| it.entry.starts_with("cmp");
    result.order == Order::MemprobeFirst
        && result.complaint.is_none()
        && result.hook.is_some_and(|answer| answer != 0)
        && !result.functions.iter().any(is_trampoline)
}

fn ucx_faults(result: &UcxResult, faults: &mut Vec<String>) {
    if is_limit(result) {
        return;
    }
    let mut fault = |words: String| {
        faults.push(format!(
            "UCX, driver {}, {}: {words}",
            result.driver,
            order(result.order)
        ));
    };
    if let Some(how) = &result.complaint {
        fault(how.clone());
    }
    if result.hook.is_some_and(|answer| answer != 0) {
        fault(format!(
            "UCX cannot place its hooks ({})",
            result.hook.unwrap_or_default()
        ));
        return;
    }
    let deaf: Vec<&str> = result
        .functions
        .iter()
        .filter(|it| !it.is_heard())
        .map(|it| it.symbol.as_str())
        .collect();
    if !deaf.is_empty() {
        fault(format!("UCX does not hear of {}", deaf.join(", ")));
    }
}
