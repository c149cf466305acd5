//! Records of the kernel's programs, from the ring buffer to the ledger.

use memprobe::decode::decode;
use memprobe::event::{Target, Tgid, TimeNs};
use memprobe::ledger::Ledger;
use memprobe::symbolize::{PriorCudaUse, Symbolizer};

use crate::image::Image;

/// Most records of one input.
const MOST: usize = 64;

/// No process has it. Its bytes are equal, so that records of equal bytes are of it.
const NOBODY: Tgid = Tgid(0x0101_0101);

/// Reads records, each after its length in two bytes.
pub fn read(data: &[u8]) {
    let memory = Image::of(&[]);
    let mut symbolizer = Symbolizer::new(NOBODY, &memory, None, PriorCudaUse::Unknown);
    let mut ledger = Ledger::new(Target::default(), TimeNs(0));
    let mut rest = data;
    for _ in 0..MOST {
        let Some((length, after)) = rest.split_first_chunk() else {
            break;
        };
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (record, after) = after.split_at(length);
        rest = after;
        if let Ok(record) = decode(record) {
            symbolizer.push_known(record);
        }
        symbolizer.settle_known();
        symbolizer.settle();
        while let Some(event) = symbolizer.pop() {
            ledger.apply(&event);
        }
    }
    symbolizer.settle_all();
    while let Some(event) = symbolizer.pop() {
        ledger.apply(&event);
    }
}
