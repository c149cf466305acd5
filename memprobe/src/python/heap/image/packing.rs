//! Packing of full windows, on another thread while the next one is filled.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use memmap2::MmapMut;
use zerocopy::IntoBytes as _;

use super::PAGES;
use super::packed_page::PackBuffer;
use crate::process::memory::{Digest, PAGE};

/// `u32` of a page.
pub(super) const UNITS: usize = PAGE / size_of::<u32>();

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PageForm {
    #[default]
    Packed,
    /// The bytes of the memory.
    Plain,
}

/// The pages of windows, one after the other.
#[derive(Debug, Default)]
pub(super) struct PackedWindows {
    units: Vec<u32>,
    pages: Vec<WindowPage>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WindowPage {
    /// Index of its first `u32`.
    start: usize,
    pub(super) form: PageForm,
    pub(super) digest: Digest,
}

impl PackedWindows {
    /// Packs windows whose chunks lay at these addresses.
    fn of(windows: &[MmapMut], addresses: &[u64]) -> Self {
        let mut buffer = PackBuffer::new();
        let mut packed = Self::default();
        let pages = windows.iter().flat_map(|window| window.chunks_exact(PAGE));
        for (number, page) in pages.enumerate() {
            let start = packed.units.len();
            let chunk = addresses.get(number / PAGES).copied().unwrap_or_default();
            let address = chunk.wrapping_add((number % PAGES * PAGE) as u64);
            let form = match buffer.pack(page, address) {
                Some(units) => {
                    packed.units.extend_from_slice(units);
                    PageForm::Packed
                }
                None => {
                    packed.units.extend_from_slice(&plain(page));
                    PageForm::Plain
                }
            };
            let digest = Digest::of(page);
            packed.pages.push(WindowPage {
                start,
                form,
                digest,
            });
        }
        packed
    }

    /// Pages from one on, each with its `u32`.
    pub(super) fn pages_from(&self, page: usize) -> impl Iterator<Item = (WindowPage, &[u32])> {
        let ends = self.pages.iter().skip(page + 1).map(|page| page.start);
        let ends = ends.chain([self.units.len()]);
        let pages = self.pages.iter().skip(page).zip(ends);
        pages.map(|(page, end)| (*page, &self.units[page.start..end]))
    }
}

/// The `u32` of a page as it was read.
///
/// # Panics
/// If it does not have [`PAGE`] bytes.
pub(super) fn plain(page: &[u8]) -> [u32; UNITS] {
    let mut units = [0; UNITS];
    units.as_mut_bytes().copy_from_slice(page);
    units
}

/// Windows that are packed, or about to be.
#[derive(Debug)]
pub(super) struct Packing {
    windows: Arc<Vec<MmapMut>>,
    /// Index of their first chunk.
    pub(super) first: usize,
    work: PackWork,
}

#[derive(Debug)]
enum PackWork {
    /// On another thread.
    Begun(JoinHandle<PackedWindows>),
    Done(PackedWindows),
}

impl Packing {
    /// Begins to pack full windows of equal size, whose chunks lay at these addresses.
    pub(super) fn begin(windows: Vec<MmapMut>, first: usize, addresses: Vec<u64>) -> Self {
        let windows = Arc::new(windows);
        let addresses: Arc<[u64]> = addresses.into();
        let shared = (Arc::clone(&windows), Arc::clone(&addresses));
        let thread = Builder::new().name("pack".to_owned());
        let work = match thread.spawn(move || PackedWindows::of(&shared.0, &shared.1)) {
            Ok(thread) => PackWork::Begun(thread),
            // There may be no more threads.
            Err(_) => PackWork::Done(PackedWindows::of(&windows, &addresses)),
        };
        Self {
            windows,
            first,
            work,
        }
    }

    /// The rest of a window, from a byte on that is counted from the first window.
    pub(super) fn bytes_at(&self, at: usize) -> &[u8] {
        let size = self.windows[0].len();
        &self.windows[at / size][at % size..]
    }

    /// Waits until the windows are packed.
    pub(super) fn wait(self) -> Self {
        let packed = match self.work {
            PackWork::Begun(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            PackWork::Done(packed) => packed,
        };
        Self {
            work: PackWork::Done(packed),
            ..self
        }
    }

    /// The windows once they are packed.
    pub(super) fn packed(&self) -> Option<&PackedWindows> {
        match &self.work {
            PackWork::Begun(_) => None,
            PackWork::Done(packed) => Some(packed),
        }
    }

    /// The memory of the windows, if nobody uses it any more.
    pub(super) fn into_windows(self) -> Option<Vec<MmapMut>> {
        Arc::into_inner(self.windows)
    }
}
