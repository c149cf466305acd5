//! Profiles of speedscope.app: one a device, by live bytes.
//!
//! `src/lib/file-format-spec.ts` in jlfwong/speedscope defines the format.

use std::io::{self, Write};

use hashbrown::HashMap;
use serde::Serialize;

use super::ExportMoment;
use super::profile::{Profile, ProfileFrame};
use super::replay::ExportReplay;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpeedscopeFile<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    shared: SharedFrames<'a>,
    profiles: Vec<SampledProfile>,
    name: &'a str,
    active_profile_index: usize,
    exporter: String,
}

#[derive(Serialize)]
struct SharedFrames<'a> {
    frames: Vec<SpeedscopeFrame<'a>>,
}

#[derive(Serialize, PartialEq, Eq, Hash, Clone)]
struct SpeedscopeFrame<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SampledProfile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<u32>>,
    weights: Vec<u64>,
}

/// Numbers of frames in the order of their first use.
#[derive(Default)]
struct FrameTable<'a> {
    frames: Vec<SpeedscopeFrame<'a>>,
    numbers: HashMap<SpeedscopeFrame<'a>, u32>,
}

impl<'a> FrameTable<'a> {
    fn number(&mut self, frame: ProfileFrame<'a>) -> u32 {
        let file = frame.frame.map(|frame| &*frame.file);
        let line = frame.frame.map(|frame| frame.line);
        let frame = SpeedscopeFrame {
            name: frame.name,
            file: file.filter(|file| !file.is_empty()),
            line: line.filter(|line| *line > 0),
        };
        let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        let frames = &mut self.frames;
        *self.numbers.entry(frame).or_insert_with_key(|frame| {
            frames.push(frame.clone());
            next
        })
    }
}

pub(super) fn write(
    replay: &ExportReplay,
    profile: &Profile,
    moment: ExportMoment,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut table = FrameTable::default();
    let mut profiles = Vec::new();
    for device in &profile.devices {
        let mut samples = Vec::new();
        let mut weights = Vec::new();
        for row in device.rows.iter().filter(|row| row.live.bytes > 0) {
            let frames = profile.frames(replay, row.origin).into_iter().rev();
            samples.push(frames.map(|frame| table.number(frame)).collect());
            weights.push(row.live.bytes);
        }
        profiles.push(SampledProfile {
            r#type: "sampled",
            name: format!("{} {}", device.device, moment.phrase()),
            unit: "bytes",
            start_value: 0,
            end_value: weights.iter().fold(0, |sum, it| sum.saturating_add(*it)),
            samples,
            weights,
        });
    }
    let file = SpeedscopeFile {
        schema: SCHEMA,
        shared: SharedFrames {
            frames: table.frames,
        },
        profiles,
        name: &replay.header.target.command,
        active_profile_index: 0,
        exporter: format!("memprobe {}", env!("CARGO_PKG_VERSION")),
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}
