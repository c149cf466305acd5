//! Outcomes of test programs, parsed from libtest's output.
//!
//! libtest knows no skipped tests: a test that cannot run prints why and passes. Such a line begins
//! with [`WHOLE`], or with [`PART`] if the rest of the test did run.

/// Begins the line of a test that did not run.
const WHOLE: &str = "skipped: ";

/// Begins the line of a test of which a part did not run.
const PART: &str = "skipped in part: ";

/// Option with which libtest prints the output of passing tests too.
pub const SHOW_OUTPUT: &str = "--show-output";

/// Extent of a skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skipped {
    /// The whole test.
    Whole,
    /// A part; the test counts as passed or failed.
    Part,
}

/// A test, or a part of it, that did not run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    /// Program and name, such as `kernel::a_kernel_that_is_too_old_is_refused_with_words`.
    pub test: String,
    pub extent: Skipped,
    /// The test's own words.
    pub reason: String,
}

/// A failed test with the beginning of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Program and name, such as `top::a_row_shows_the_totals`.
    pub test: String,
    /// At most [`MAX_FAILURE_LINES`] lines, without the stack backtrace.
    pub output: String,
}

/// Enough for the message of an assertion that shows a screen of 40 rows.
const MAX_FAILURE_LINES: usize = 60;

/// Counts of tests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Tests that ran and passed.
    pub passed: usize,
    pub failed: usize,
    /// Failures whose output is known.
    pub failures: Vec<Failure>,
    pub skips: Vec<Skip>,
}

impl Outcome {
    /// Parses the output of a test program called `program`, run with [`SHOW_OUTPUT`]. Returns `None`
    /// if the program did not reach its end.
    pub fn parse(program: &str, output: &str) -> Option<Self> {
        let result = output
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("test result: "))?;
        let mut skips = Vec::new();
        let mut test = None;
        for line in output.lines() {
            if let Some(name) = header(line) {
                test = Some(name);
            } else if let Some(skip) = test.and_then(|test| skip(program, test, line)) {
                skips.push(skip);
            } else if let Some(ignored) = ignored(program, line) {
                skips.push(ignored);
            }
        }
        let mut outcome = Self {
            failed: count(result, "failed")?,
            failures: failures(program, output),
            ..Self::default()
        };
        outcome.add_skips(skips);
        let ignored = count(result, "ignored")?;
        let ran = count(result, "passed")? + ignored;
        outcome.passed = ran.checked_sub(outcome.skipped())?;
        Some(outcome)
    }

    /// Adds the counts of another program.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.add_skips(other.skips);
    }

    /// Adds skips. A test is skipped once, even if it says so twice.
    pub fn add_skips(&mut self, skips: impl IntoIterator<Item = Skip>) {
        for skip in skips {
            let is_known = |known: &Skip| {
                known.test == skip.test
                    && (known.reason == skip.reason || skip.extent == Skipped::Whole)
                    && known.extent == skip.extent
            };
            if !self.skips.iter().any(is_known) {
                self.skips.push(skip);
            }
        }
    }

    /// Counts the tests that did not run at all.
    pub fn skipped(&self) -> usize {
        let whole = |skip: &&Skip| skip.extent == Skipped::Whole;
        self.skips.iter().filter(whole).count()
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, .. } = self;
        write!(
            f,
            "{passed} passed, {failed} failed, {} skipped",
            self.skipped()
        )
    }
}

/// Returns the output without that of passing tests.
pub fn without_passing(output: &str) -> String {
    let mut shown = String::new();
    let mut is_of_passing = false;
    for line in output.lines() {
        match line {
            "successes:" => is_of_passing = true,
            "failures:" => is_of_passing = false,
            _ if line.starts_with("test result: ") => is_of_passing = false,
            _ => {}
        }
        if !is_of_passing {
            shown += line;
            shown.push('\n');
        }
    }
    shown
}

/// Parses the section of failures. Returns each test with the beginning of its output.
fn failures(program: &str, output: &str) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    let mut taken = MAX_FAILURE_LINES;
    let section = output.lines().skip_while(|line| *line != "failures:");
    for line in section.skip(1) {
        if line == "failures:" {
            break;
        } else if let Some(name) = header(line) {
            let test = format!("{program}::{name}");
            let output = String::new();
            failures.push(Failure { test, output });
            taken = 0;
        } else if line == "stack backtrace:" {
            taken = MAX_FAILURE_LINES;
        } else if let Some(failure) = failures.last_mut()
            && taken < MAX_FAILURE_LINES
        {
            failure.output += line;
            failure.output.push('\n');
            taken += 1;
        }
    }
    failures
}

/// Returns the test whose output follows `---- NAME stdout ----`.
fn header(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

fn skip(program: &str, test: &str, line: &str) -> Option<Skip> {
    let (extent, reason) = if let Some(reason) = line.strip_prefix(WHOLE) {
        (Skipped::Whole, reason)
    } else {
        (Skipped::Part, line.strip_prefix(PART)?)
    };
    Some(Skip {
        test: format!("{program}::{test}"),
        extent,
        reason: reason.trim().to_owned(),
    })
}

/// Parses `test NAME ... ignored` and `test NAME ... ignored, REASON`.
fn ignored(program: &str, line: &str) -> Option<Skip> {
    let (test, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let reason = verdict.strip_prefix("ignored")?;
    Some(Skip {
        test: format!("{program}::{test}"),
        extent: Skipped::Whole,
        reason: format!("ignored{reason}"),
    })
}

/// Returns the number before a word, as in `ok. 12 passed; 0 failed; …`.
fn count(result: &str, word: &str) -> Option<usize> {
    let part = result
        .split([';', '.'])
        .find(|part| part.trim().ends_with(word))?;
    part.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 4 tests
test runs ... ok
test cannot_run ... ok
test runs_in_part ... ok
test is_ignored ... ignored, not now

successes:

---- cannot_run stdout ----
skipped: no such kernel
skipped: said twice

---- runs_in_part stdout ----
skipped in part: no Python 3.15
skipped in part: no Python 3.14
compared 12

successes:
    cannot_run
    runs
    runs_in_part

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s

";

    #[test]
    fn skipped_tests_do_not_count_as_passed() {
        let outcome = Outcome::parse("kernel", OUTPUT).expect("whole");
        assert_eq!(outcome.to_string(), "2 passed, 0 failed, 2 skipped");
        let skips: Vec<_> = outcome
            .skips
            .iter()
            .map(|skip| (skip.test.as_str(), skip.extent, skip.reason.as_str()))
            .collect();
        assert_eq!(
            skips,
            [
                ("kernel::is_ignored", Skipped::Whole, "ignored, not now"),
                ("kernel::cannot_run", Skipped::Whole, "no such kernel"),
                ("kernel::runs_in_part", Skipped::Part, "no Python 3.15"),
                ("kernel::runs_in_part", Skipped::Part, "no Python 3.14"),
            ]
        );
    }

    #[test]
    fn a_program_that_did_not_end_has_no_outcome() {
        let cut = OUTPUT.split("test result").next().expect("a beginning");
        assert_eq!(Outcome::parse("kernel", cut), None);
    }

    #[test]
    fn words_outside_of_a_test_are_no_skip() {
        let output = OUTPUT.replace("---- cannot_run stdout ----\n", "");
        let output = output.replace("---- runs_in_part stdout ----\n", "");
        let outcome = Outcome::parse("kernel", &output).expect("whole");
        assert_eq!(outcome.to_string(), "3 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn outcomes_add_up() {
        let mut sum = Outcome::parse("kernel", OUTPUT).expect("whole");
        let failed = OUTPUT.replace("ok. 3 passed; 0 failed", "FAILED. 1 passed; 2 failed");
        sum.add(Outcome::parse("top", &failed).expect("whole"));
        assert_eq!(sum.to_string(), "2 passed, 2 failed, 4 skipped");
        assert_eq!(sum.skips.len(), 8);
    }

    #[test]
    fn a_failed_test_keeps_its_message_without_the_backtrace() {
        let rows = "row\n".repeat(MAX_FAILURE_LINES);
        let failed = format!(
            "successes:\n\n---- good stdout ----\nfine\n\nfailures:\n\n---- bad stdout ----\nthread 'bad' panicked:\n\
             waited in vain\nstack backtrace:\n   0: begin\n\n---- long stdout ----\n{rows}the last row\n\n\
             failures:\n    bad\n    long\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored"
        );
        let outcome = Outcome::parse("top", &failed).expect("whole");
        let [bad, long] = &outcome.failures[..] else {
            panic!("{:?}", outcome.failures);
        };
        assert_eq!(bad.test, "top::bad");
        assert_eq!(bad.output, "thread 'bad' panicked:\nwaited in vain\n");
        assert_eq!((long.test.as_str(), &long.output), ("top::long", &rows));
    }

    #[test]
    fn the_output_of_passing_tests_is_left_out() {
        let shown = without_passing(OUTPUT);
        assert!(shown.contains("test runs ... ok") && shown.contains("test result: ok."));
        assert!(!shown.contains("compared 12"), "{shown}");
        let failed = OUTPUT.replace("successes:", "failures:");
        assert!(without_passing(&failed).contains("compared 12"));
    }
}
