//! One page about a process: parts of its GPUs' memory, growth, and measures against a full GPU.

mod failure;
mod host;
mod json;
mod measures;
mod moment;
mod parts;
mod recording;
mod tensors;
mod text;
mod verdict;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::time::Duration;

use super::{Colour, DocumentFormat, ReportError, unless_closed};
use crate::attribution::growth::Growth;
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex, Target, Totals};
use crate::tensors::KvTable;
use crate::view::table::{Page, json_document};

pub use failure::{FailedRequest, FreeList, OomCause};
pub use host::write_host_explanation;
pub use measures::{Measure, MeasureId};
pub use parts::{MemoryPart, PartId};
pub use recording::{FailureEvidence, RecordingEvidence, explain_recording, failure_evidence};
pub use tensors::{ProcessEvidence, explain_process};

/// Page about one process.
#[derive(Clone, Debug)]
pub struct Explanation {
    pub target: Target,
    pub source: ExplanationSource,
    /// The device with most memory first.
    pub devices: Vec<DeviceExplanation>,
    /// Gaps of the figures, a sentence each.
    pub notes: Vec<String>,
}

/// Origin of the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplanationSource {
    /// A running process, watched for this time.
    Process {
        watched: Duration,
        consistency: String,
    },
    /// A snapshot of tensors.
    Snapshot { file: String },
    /// A recording, at this moment.
    Recording {
        file: String,
        moment: RecordedMoment,
    },
}

/// Moment of a recording that the page is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedMoment {
    /// Most allocated bytes, of each device its own.
    Peak,
    /// The last out-of-memory error, or that of a dump.
    OutOfMemory,
    /// The end of a dump that somebody asked for.
    Requested,
}

/// Memory of a GPU as the driver counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    pub total: Bytes,
    pub used: Bytes,
    /// Bytes of this process; `None` if the driver does not say.
    pub process: Option<Bytes>,
    /// Bytes that the allocator has reserved without device memory: they sleep, as in vLLM's sleep mode, or are managed.
    pub unbacked: Bytes,
}

#[derive(Clone, Debug)]
pub struct DeviceExplanation {
    pub index: DeviceIndex,
    pub gpu: Option<GpuMemory>,
    /// The allocator's totals at the moment that the page is about.
    pub totals: Totals,
    /// Parts of the GPU's memory, or of the allocator's reserved bytes if the GPU's are unknown. They add up to that, and
    /// to the reserved bytes that CUDA does not back.
    pub parts: Vec<MemoryPart>,
    /// Largest owners first.
    pub owners: Vec<MemoryOwner>,
    /// Heading of the owners.
    pub owned: OwnedBy,
    /// Out-of-memory errors seen.
    pub ooms: u64,
    /// Request that failed at the moment of the page.
    pub failed: Option<FailedRequest>,
    /// `None` if the program was not watched.
    pub growth: Option<Growth>,
    /// Bytes that `torch.cuda.empty_cache()` would return; `None` if the allocator's segments are unknown.
    pub returnable: Option<Bytes>,
    pub measures: Vec<Measure>,
    /// KV cache of a server; `None` if it is not divided among requests.
    pub kv: Option<KvTable>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedBy {
    /// Variables, modules and optimizers that keep the memory alive.
    Retainer,
    /// Lines that allocated it, at the peak.
    Line,
    /// Lines that allocated it, at the moment of the page.
    LiveLine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOwner {
    /// Name; `None` for memory that no name leads to.
    pub name: Option<String>,
    /// Class of the variable, module or optimizer.
    pub class: Option<String>,
    pub bytes: Bytes,
    /// Bytes that nothing else keeps; `None` if unknown.
    pub exclusive: Option<Bytes>,
    /// Bytes of a server's KV cache among them.
    pub kv_cache: Bytes,
}

#[derive(Clone, Copy, Debug)]
pub struct ExplainOptions {
    pub format: DocumentFormat,
    pub width: usize,
    pub colour: Colour,
}

impl Explanation {
    /// The verdict: a sentence or two with numbers.
    pub fn verdict(&self) -> String {
        verdict::verdict(self).text
    }
}

impl DeviceExplanation {
    fn part(&self, id: PartId) -> Bytes {
        let parts = self.parts.iter().filter(|part| part.id == id);
        Bytes(parts.map(|part| part.bytes.0).sum())
    }

    /// Bytes of the GPU and those reserved without device memory or, if the GPU's are unknown, reserved bytes.
    fn whole(&self) -> Bytes {
        self.gpu.map_or(self.totals.reserved, |gpu| {
            Bytes(gpu.total.0.saturating_add(gpu.unbacked.0))
        })
    }

    /// Says what the parts have beyond the GPU's memory, if there is any.
    fn unbacked_note(&self) -> Option<String> {
        let unbacked = self.gpu?.unbacked;
        (unbacked.0 > 0).then(|| {
            format!(
                "{} of what {} has reserved is no memory of the GPU now: it sleeps, or is managed (report --by owner)",
                human(unbacked),
                self.index
            )
        })
    }
}

/// Returns the key of the cause, and the verdict in sentences. A failed request has its own causes.
pub fn verdict_of(explanation: &Explanation) -> (&'static str, String) {
    let failed = explanation
        .devices
        .iter()
        .find_map(|device| device.failed.as_ref());
    let verdict = verdict::verdict(explanation);
    let cause = failed.map_or(verdict.cause.key(), |failed| failed.cause.key());
    (cause, verdict.text)
}

/// Writes the page. Returns `None` if the reader closes the output early.
pub fn write_explanation(
    explanation: &Explanation,
    options: ExplainOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    let written = match options.format {
        DocumentFormat::Text => {
            let mut page = Page::new(options.width, options.colour);
            text::push(&mut page, explanation);
            out.write_all(page.into_text().as_bytes())
        }
        DocumentFormat::Json => json_document(&json::document(explanation), out),
    };
    unless_closed(written.and_then(|()| out.flush()).map_err(Into::into))
}
