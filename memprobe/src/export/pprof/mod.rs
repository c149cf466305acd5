//! Profiles of pprof: live and allocated bytes and blocks by stack, with labels.

mod messages;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use hashbrown::HashMap;
use prost::Message as _;

use super::profile::{
    DeviceProfile, Profile, ProfileAmount, ProfileFrame, ProfileOrigin, ProfileRow,
};
use super::replay::ExportReplay;
use super::{ExportMoment, ExportRequest};
use messages::{
    PprofFunction, PprofLabel, PprofLine, PprofLocation, PprofMapping, PprofProfile, PprofSample,
    ValueType,
};

/// Types and units of values, in the order of Go's heap profiles.
const SAMPLE_TYPES: [(&str, &str); 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    (DEFAULT_TYPE, "bytes"),
];

const DEFAULT_TYPE: &str = "inuse_space";

/// The one mapping: the program. Its locations have names already.
const PROGRAM: u64 = 1;

pub(super) fn write(
    replay: &ExportReplay,
    profile: &Profile,
    request: ExportRequest,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut builder = Builder {
        rank: request.rank.map(|rank| rank.to_string()),
        ..Builder::default()
    };
    builder.begin(replay, profile, request.moment);
    for device in &profile.devices {
        for row in &device.rows {
            builder.push(replay, profile, device, row);
        }
    }
    let mut packed = GzEncoder::new(&mut *out, Compression::default());
    packed.write_all(&builder.profile.encode_to_vec())?;
    packed.finish()?;
    Ok(())
}

#[derive(Default)]
struct Builder {
    /// Label of all samples.
    rank: Option<String>,
    profile: PprofProfile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<(u64, i64), u64>,
    /// Locations of an origin, innermost first.
    stacks: HashMap<ProfileOrigin, Vec<u64>>,
}

impl Builder {
    fn begin(&mut self, replay: &ExportReplay, profile: &Profile, moment: ExportMoment) {
        // The first string is empty, by definition.
        self.string("");
        let types = SAMPLE_TYPES.map(|(name, unit)| self.value_type(name, unit));
        self.profile.sample_type = types.into();
        self.profile.default_sample_type = self.string(DEFAULT_TYPE);
        self.profile.period_type = Some(self.value_type("space", "bytes"));
        // Every allocation is counted.
        self.profile.period = 1;
        let latest = profile
            .devices
            .iter()
            .map(|device| device.sample.time)
            .max();
        let latest = latest.unwrap_or(replay.header.start);
        if replay.header.wall_start_ms.is_some() {
            self.profile.time_nanos = signed(replay.wall_us(latest).saturating_mul(1000));
        }
        let since = profile
            .devices
            .iter()
            .map(|it| it.since(replay.header.start));
        self.profile.duration_nanos = signed(since.max().unwrap_or(0));
        let comment = self.string(&format!("memprobe: live memory {}", moment.phrase()));
        self.profile.comment.push(comment);
        let filename = self.string(&replay.header.target.command);
        self.profile.mapping.push(PprofMapping {
            id: PROGRAM,
            filename,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
        });
    }

    fn push(
        &mut self,
        replay: &ExportReplay,
        profile: &Profile,
        device: &DeviceProfile,
        row: &ProfileRow,
    ) {
        let mut labels = vec![("device", device.device.to_string())];
        if let Some(category) = row.category {
            labels.push(("category", category.key().to_owned()));
        }
        if let ProfileOrigin::Stack(stack) = row.origin
            && let Some(module) = replay.module(stack)
        {
            labels.push(("module", module));
        }
        if let Some(rank) = self.rank.clone() {
            labels.push(("rank", rank));
        }
        let labels = labels.iter().map(|(key, value)| PprofLabel {
            key: self.string(key),
            str: self.string(value),
        });
        let label = labels.collect();
        let [allocated, live] = [row.allocated, row.live];
        let values = |of: ProfileAmount| [signed(of.blocks), signed(of.bytes)];
        let location_id = self.locations_of(replay, profile, row.origin);
        self.profile.sample.push(PprofSample {
            location_id,
            value: [values(allocated), values(live)].concat(),
            label,
        });
    }

    fn locations_of(
        &mut self,
        replay: &ExportReplay,
        profile: &Profile,
        origin: ProfileOrigin,
    ) -> Vec<u64> {
        if let Some(known) = self.stacks.get(&origin) {
            return known.clone();
        }
        let frames = profile.frames(replay, origin);
        let locations: Vec<u64> = frames.iter().map(|frame| self.location(frame)).collect();
        self.stacks.insert(origin, locations.clone());
        locations
    }

    fn location(&mut self, frame: &ProfileFrame<'_>) -> u64 {
        let (name, file, line) = match frame.frame {
            None => (&*frame.name, "", 0),
            Some(frame) if frame.file.is_empty() => {
                let library = frame.library.as_deref().unwrap_or_default();
                (&*frame.function, library, frame.line)
            }
            Some(frame) => (&*frame.function, &*frame.file, frame.line),
        };
        let (name, filename) = (self.string(name), self.string(file));
        let functions = &mut self.profile.function;
        let function_id = *self.functions.entry((name, filename)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(PprofFunction {
                id,
                name,
                system_name: name,
                filename,
            });
            id
        });
        let line = i64::from(line);
        let locations = &mut self.profile.location;
        *self
            .locations
            .entry((function_id, line))
            .or_insert_with(|| {
                let id = locations.len() as u64 + 1;
                locations.push(PprofLocation {
                    id,
                    mapping_id: PROGRAM,
                    line: vec![PprofLine { function_id, line }],
                });
                id
            })
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        }
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let next = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), next);
        next
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
