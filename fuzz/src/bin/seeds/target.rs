//! A running program, and the memory that was read of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use memprobe::event::Tgid;
use memprobe::process::memory::{ProcessMemory, ReadMemory, ReadResult};
use memprobe_fuzz::image::Image;
use memprobe_fuzz::objects::Objects;

/// A program that prints the addresses of its objects, one line for each input, and waits. It ends on drop.
pub struct Target {
    child: Child,
    /// Lines before the line `end`.
    pub lines: Vec<Vec<u64>>,
}

impl Target {
    pub fn start(command: &mut Command) -> Result<Self, Box<dyn Error>> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let printed = child.stdout.take().ok_or("no output")?;
        let mut target = Self {
            child,
            lines: Vec::new(),
        };
        for line in BufReader::new(printed).lines() {
            let line = line?;
            if line == "end" {
                return Ok(target);
            }
            let addresses = line.split_whitespace().map(str::parse);
            target.lines.push(addresses.collect::<Result<_, _>>()?);
        }
        Err("the program ended early".into())
    }

    pub fn tgid(&self) -> Tgid {
        Tgid(self.child.id())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of a process that remembers all that was read of it.
pub struct Seen {
    memory: ProcessMemory,
    bytes: RefCell<BTreeMap<u64, u8>>,
}

impl ReadMemory for Seen {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.memory.read(address, into)?;
        let bytes = into.iter().copied();
        self.bytes.borrow_mut().extend((address..).zip(bytes));
        Ok(())
    }
}

impl Seen {
    pub fn of(tgid: Tgid) -> Self {
        Self {
            memory: ProcessMemory::new(tgid),
            bytes: RefCell::default(),
        }
    }

    /// Returns the input of these objects, with all memory that was read.
    pub fn into_input(self, version: u8, objects: &[u64]) -> Vec<u8> {
        let mut input = Objects::describe(version, objects);
        for (address, bytes) in pieces(&self.bytes.into_inner()) {
            Image::describe(address, &bytes, &mut input);
        }
        without_paths(&mut input);
        input
    }
}

/// Overwrites the paths of the home and the working folder, which say more of this machine than of Python.
fn without_paths(input: &mut [u8]) {
    let folders = ["HOME", "PWD"].map(|name| std::env::var_os(name).unwrap_or_default());
    for folder in folders.iter().map(|folder| folder.as_encoded_bytes()) {
        let places = 0..input.len().saturating_sub(folder.len());
        for at in places.filter(|_| folder.len() > 1) {
            if input[at..].starts_with(folder) {
                input[at + 1..at + folder.len()].fill(b'x');
            }
        }
    }
}

/// Joins bytes to pieces; short gaps stay in a piece.
fn pieces(bytes: &BTreeMap<u64, u8>) -> Vec<(u64, Vec<u8>)> {
    const GAP: u64 = 10;
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    for (&address, &byte) in bytes {
        match pieces.last_mut() {
            Some((start, piece)) if address - (*start + piece.len() as u64) <= GAP => {
                piece.resize((address - *start) as usize, 0);
                piece.push(byte);
            }
            _ => pieces.push((address, vec![byte])),
        }
    }
    pieces
}
