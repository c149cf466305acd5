//! Steps of a run: their progress, their times, and the times of earlier runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Seconds that steps and test programs took in earlier runs.
#[derive(Debug, Default, Clone)]
pub struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, f64>,
}

impl Times {
    /// Reads the times of earlier runs; none if there are none.
    pub fn read(file: &Path) -> Self {
        let text = fs::read(file).unwrap_or_default();
        Self {
            file: file.to_owned(),
            seconds: serde_json::from_slice(&text).unwrap_or_default(),
        }
    }

    /// Returns the time of a step in an earlier run.
    pub fn of(&self, name: &str) -> Option<Duration> {
        let seconds = *self.seconds.get(name)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Remembers the time of a step for the next run.
    pub fn put(&mut self, name: &str, time: Duration) {
        self.seconds.insert(name.to_owned(), time.as_secs_f64());
    }

    /// Adds newer times.
    pub fn merge(&mut self, newer: Self) {
        self.seconds.extend(newer.seconds);
    }

    /// Writes the times for the next run, which only orders its steps by them.
    pub fn write(&self) {
        let text = serde_json::to_string_pretty(&self.seconds).unwrap_or_default();
        if let Err(error) = fs::write(&self.file, text + "\n") {
            eprintln!("cannot write {}: {error}", self.file.display());
        }
    }

    /// Formats the work left: its time if earlier runs took all of it, otherwise its names.
    pub fn left(&self, names: &[String], at_once: u32) -> String {
        if names.is_empty() {
            return "nothing left".to_owned();
        }
        let times: Option<Duration> = names.iter().map(|name| self.of(name)).sum();
        match times {
            Some(time) => format!("{} left, about {}", names.len(), in_words(time / at_once)),
            None if names.len() > 6 => format!("{} left", names.len()),
            None => format!("left: {}", names.join(", ")),
        }
    }
}

/// Steps of a run, in order.
#[derive(Debug)]
pub struct Steps {
    start: Instant,
    planned: Vec<String>,
    taken: Vec<(String, Duration, bool)>,
    pub times: Times,
}

impl Steps {
    /// Plans steps by name.
    pub fn plan(planned: &[&str], times: Times) -> Self {
        Self {
            start: Instant::now(),
            planned: planned.iter().map(|&name| name.to_owned()).collect(),
            taken: Vec::new(),
            times,
        }
    }

    /// Takes the next step: prints its name, the time so far and the steps left.
    ///
    /// # Errors
    ///
    /// The step's error, with its name.
    pub fn take<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        self.planned.retain(|planned| planned != name);
        println!(
            "\n== {name}  ({} so far; then {})",
            in_words(self.start.elapsed()),
            self.times.left(&self.planned, 1)
        );
        let start = Instant::now();
        let outcome = step();
        let time = start.elapsed();
        self.times.put(name, time);
        self.taken.push((name.to_owned(), time, outcome.is_ok()));
        outcome.with_context(|| format!("failed at: {name}"))
    }

    /// Prints the time of each step, and keeps the times for the next run.
    pub fn finish(&self) {
        println!("\n== times");
        print!("{}", self.table());
        self.times.write();
    }

    fn table(&self) -> String {
        let mut table = String::new();
        for (name, time, passed) in &self.taken {
            let verdict = if *passed { "" } else { "  FAILED" };
            table += &format!("{:>8.1} s  {name}{verdict}\n", time.as_secs_f64());
        }
        let total: Duration = self.taken.iter().map(|(_, time, _)| *time).sum();
        table + &format!("{:>8.1} s  in all\n", total.as_secs_f64())
    }
}

/// Formats a duration, such as `45 s` or `6 min`.
pub fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn a_step_that_fails_ends_the_run_and_is_named_with_its_time() {
        let mut steps = Steps::plan(&["first", "second"], Times::default());
        steps.take("first", || Ok(())).unwrap();
        let error = steps
            .take("second", || -> Result<()> { bail!("no such thing") })
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "failed at: second: no such thing");
        let table = steps.table();
        assert!(
            table.contains("s  first\n") && table.contains("s  second  FAILED\n"),
            "{table}"
        );
        assert!(table.ends_with("in all\n"), "{table}");
    }

    #[test]
    fn the_work_left_is_estimated_if_all_of_it_was_done_before() {
        let mut times = Times::default();
        times.put("top", Duration::from_secs(400));
        times.put("names", Duration::from_secs(200));
        let names = ["top".to_owned(), "names".to_owned()];
        assert_eq!(times.left(&names, 2), "2 left, about 5 min");
        assert_eq!(times.left(&["new".to_owned()], 2), "left: new");
        assert_eq!(times.left(&[], 2), "nothing left");
    }

    #[test]
    fn times_outlive_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("times.json");
        let mut times = Times::read(&file);
        times.put("top", Duration::from_secs(7));
        times.write();
        let again = Times::read(&file);
        assert_eq!(again.of("top"), Some(Duration::from_secs(7)));
        fs::write(&file, "{").unwrap();
        assert_eq!(Times::read(&file).of("top"), None);
    }
}
