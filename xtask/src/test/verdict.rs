//! Verdict of a run: counts of tests, and skips that this machine does not excuse.

use anyhow::{Result, bail};

use super::outcome::{Failure, Skip, Skipped};
use super::programs::Report;
use super::skips::{self, Machine};

/// Failures whose messages are repeated at the end.
const MAX_SHOWN_FAILURES: usize = 8;

/// Prints the reasons of skips, the messages of failures, and the counts. Fails if a test failed, or was skipped
/// although this machine can run it.
pub fn judge(report: &Report, machine: &Machine) -> Result<()> {
    let outcome = &report.outcome;
    let mut unexpected = 0;
    println!("\n== skipped");
    let is_left_out = |skip: &Skip| skips::is_long(skip) && machine.expects(skip);
    let long = outcome
        .skips
        .iter()
        .filter(|skip| is_left_out(skip))
        .count();
    if long > 0 {
        println!("  {long} tests that are {}", skips::LONG);
    }
    for skip in outcome.skips.iter().filter(|skip| !is_left_out(skip)) {
        let part = match skip.extent {
            Skipped::Whole => "",
            Skipped::Part => " (in part)",
        };
        let verdict = if machine.expects(skip) {
            ""
        } else {
            unexpected += 1;
            "UNEXPECTED: "
        };
        println!("  {verdict}{}{part}: {}", skip.test, skip.reason);
    }
    print_failures(&outcome.failures);
    println!("\n{outcome}");
    if !report.failed.is_empty() {
        bail!("tests failed in {}", report.failed.join(", "));
    }
    if unexpected > 0 {
        bail!(
            "{unexpected} skips are not expected on this machine; if one should be, list it in \
             xtask/src/test/skips.rs"
        );
    }
    Ok(())
}

/// Repeats the messages near the end, which a log that is cut in the middle still has.
fn print_failures(failures: &[Failure]) {
    if failures.is_empty() {
        return;
    }
    println!("\n== failed");
    for failure in failures.iter().take(MAX_SHOWN_FAILURES) {
        println!("  {}", failure.test);
        for line in failure.output.lines() {
            println!("    {line}");
        }
    }
    if let Some(more @ 1..) = failures.len().checked_sub(MAX_SHOWN_FAILURES) {
        println!("  and {more} more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Extent;

    fn report(skip: &str, failed: &[&str]) -> Report {
        let mut report = Report {
            failed: failed.iter().map(|&name| name.to_owned()).collect(),
            ..Report::default()
        };
        report.outcome.add_skips([Skip {
            test: "kernel::a_kernel_that_is_too_old_is_refused".to_owned(),
            extent: Skipped::Whole,
            reason: skip.to_owned(),
        }]);
        report
    }

    #[test]
    fn an_unexpected_skip_fails_a_run_without_failures() {
        let machine = Machine {
            kernel: "6.1.0".to_owned(),
            ..Machine::inspect(Extent::Short)
        };
        judge(&report("6.1.0 is not too old", &[]), &machine).unwrap();
        let error = judge(&report("I was tired", &[]), &machine).unwrap_err();
        assert!(
            error.to_string().contains("1 skips are not expected"),
            "{error}"
        );
        let error = judge(&report("6.1.0 is not too old", &["tests/top.rs"]), &machine);
        assert_eq!(
            error.unwrap_err().to_string(),
            "tests failed in tests/top.rs"
        );
    }
}
