//! Stored results of a matrix, such as `docs/matrix.json`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A result that a store keeps.
pub trait Stored: Serialize + DeserializeOwned {
    /// Place of the result among the others.
    type Order: Ord;

    fn order(&self) -> Self::Order;

    /// True if one replaces the other.
    fn is_same(&self, other: &Self) -> bool;

    /// True if `build` gave this result, and it has no defect.
    fn is_done(&self, build: &str) -> bool;
}

/// All stored cells, sorted.
#[derive(Debug)]
pub struct Store<C> {
    path: PathBuf,
    cells: Vec<C>,
}

impl<C: Stored> Store<C> {
    /// Reads the file; a missing file gives an empty store.
    pub fn open(path: &Path) -> Result<Self> {
        let cells = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is not the matrix: delete it", path.display()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        Ok(Self {
            path: path.to_owned(),
            cells,
        })
    }

    /// Returns every cell in order.
    pub fn cells(&self) -> &[C] {
        &self.cells
    }

    /// True if this build already has a result without a defect for a cell that `is_wanted` accepts.
    pub fn has(&self, build: &str, is_wanted: impl Fn(&C) -> bool) -> bool {
        let done = |cell: &&C| cell.is_done(build);
        self.cells.iter().filter(done).any(is_wanted)
    }

    /// Inserts a cell, replacing an earlier result.
    pub fn put(&mut self, cell: C) {
        match self.cells.iter_mut().find(|other| cell.is_same(other)) {
            Some(place) => *place = cell,
            None => self.cells.push(cell),
        }
        // A stable sort keeps the order of a pair's workloads.
        self.cells.sort_by_key(Stored::order);
    }

    /// Writes the file atomically.
    pub fn save(&self) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let partial = self.path.with_extension("partial");
        let mut text = serde_json::to_string_pretty(&self.cells)?;
        text.push('\n');
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&partial, text))
            .and_then(|()| fs::rename(&partial, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::cell::{Answer, Cell, Outcome};

    pub fn cell(torch: &str, python: &str, workload: &str, outcome: Outcome) -> Cell {
        Cell {
            torch: torch.to_owned(),
            python: python.to_owned(),
            workload: workload.to_owned(),
            python_version: format!("{python}.1"),
            date: "2026-11-21".to_owned(),
            kernel: "Linux 6.18.0".to_owned(),
            build: "abc".to_owned(),
            object: None,
            outcome,
        }
    }

    fn exact() -> Outcome {
        Outcome::Exact {
            events: 10,
            counted: None,
            stacks: 5,
            backward: 1,
            checkpoints: 1,
        }
    }

    #[test]
    fn cells_outlive_the_run_in_their_order_and_are_tried_once_by_a_build() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docs/matrix.json");
        let mut store = Store::<Cell>::open(&path).unwrap();
        store.put(cell("2.10.0", "3.10", "threads", exact()));
        store.put(cell("2.6.0", "3.11", "threads", exact()));
        store.put(cell("2.6.0", "3.9", "threads", Outcome::failed("no")));
        store.save().unwrap();
        let store = Store::<Cell>::open(&path).unwrap();
        let order: Vec<_> = store
            .cells()
            .iter()
            .map(|cell| cell.python.as_str())
            .collect();
        assert_eq!(order, ["3.9", "3.11", "3.10"]);
        let has =
            |python, build| store.has(build, |cell: &Cell| cell.is_of(python, "2.6.0", "threads"));
        assert!(has("3.11", "abc"));
        assert!(!has("3.11", "another build"));
        assert!(!has("3.9", "abc"), "it failed");
    }
}
