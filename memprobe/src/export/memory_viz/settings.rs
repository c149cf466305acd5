//! Settings of the allocator, inferred from the environment of the process.

use std::io::{self, Write};

use super::SnapshotWriter;
use crate::estimate::AllocatorSettings;
use crate::recording::PICKLE_SETTINGS_TEXT_KEY;

impl<W: Write> SnapshotWriter<'_, W> {
    /// Writes the settings, if the environment gave any.
    pub(super) fn allocator_settings(&mut self) -> io::Result<()> {
        let target = &self.replay.header.target;
        let (Some(conf), torch) = (&target.allocator_conf, target.torch.as_deref()) else {
            return Ok(());
        };
        self.out.text("allocator_settings")?;
        self.out.empty_dict()?;
        self.out.mark()?;
        self.text_field(PICKLE_SETTINGS_TEXT_KEY, conf)?;
        // Of a text that memprobe does not understand, the values are not known.
        if let Ok(settings) = AllocatorSettings::parse_recorded(conf, torch) {
            self.out.text("expandable_segments")?;
            self.out.bool(settings.expandable)?;
            self.out.text("max_split_size")?;
            // PyTorch writes its largest number as -1.
            let max_split = i64::try_from(settings.max_split).unwrap_or(-1);
            self.out.int(max_split)?;
            if torch.is_some() || !AllocatorSettings::depends_on_version(conf) {
                self.roundup_divisions(&settings)?;
            }
            let threshold = AllocatorSettings::value(conf, "garbage_collection_threshold");
            let threshold = threshold.map_or(Ok(0.0), str::parse);
            if let Ok(threshold @ 0.0..1.0) = threshold {
                self.out.text("garbage_collection_threshold")?;
                self.out.float(threshold)?;
            }
        }
        self.out.set()
    }

    /// Writes the divisions of each interval, by its begin in MiB.
    fn roundup_divisions(&mut self, settings: &AllocatorSettings) -> io::Result<()> {
        self.out.text("roundup_power2_divisions")?;
        self.out.empty_dict()?;
        self.out.mark()?;
        for (interval, divisions) in settings.roundup.iter().enumerate() {
            self.number_field(&(1_u64 << interval).to_string(), *divisions)?;
        }
        self.out.set()
    }
}
