//! Settings of `PYTORCH_CUDA_ALLOC_CONF` (`PYTORCH_ALLOC_CONF` since 2.10) that the simulation knows.
//!
//! The grammar and the limits are those of `AcceleratorAllocatorConfig::parseArgs`
//! (c10/core/AllocatorConfig.cpp@v2.15.0); the rounding follows `roundup_power2_next_division`
//! (c10/cuda/CUDACachingAllocator.cpp@v2.15.0).

use super::{LARGE_SEGMENT, LEAST, MOST};
use crate::torch::versions::major_minor;

const MIB: u64 = 1 << 20;
/// Granularity of mapped memory.
const PAGE: u64 = 2 << 20;
/// Intervals of `roundup_power2_divisions`: 1 MiB to 64 GiB, each twice as long as the one before.
const INTERVALS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorSettings {
    /// `expandable_segments`.
    pub expandable: bool,
    /// `max_split_size_mb`, in bytes.
    pub max_split: u64,
    /// `max_non_split_rounding_mb`, in bytes.
    pub max_non_split_rounding: u64,
    /// `large_segment_size_mb`, in bytes.
    pub large_segment: u64,
    /// `roundup_power2_divisions` of each interval; 0 and 1 for none.
    pub roundup: [u64; INTERVALS],
}

impl Default for AllocatorSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Parser of the settings, whose rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingsParser {
    /// `CUDAAllocatorConfig::parseArgs` (c10/cuda/CUDAAllocatorConfig.cpp).
    Cuda,
    /// `AcceleratorAllocatorConfig::parseArgs` (c10/core/AllocatorConfig.cpp).
    Accelerator,
}

/// First version with [`SettingsParser::Accelerator`].
const FIRST_ACCELERATOR: (u32, u32) = (2, 10);

impl SettingsParser {
    /// Returns the parser of a version of PyTorch; the newest if it is not known.
    fn of_torch(version: Option<&str>) -> Self {
        match version.and_then(major_minor) {
            Some(version) if version < FIRST_ACCELERATOR => Self::Cuda,
            _ => Self::Accelerator,
        }
    }

    /// Least size of a block that is not split, in MiB.
    const fn least_split(self) -> u64 {
        match self {
            Self::Cuda => 21,
            Self::Accelerator => 20,
        }
    }

    /// Index of the first interval of the part for all larger sizes (`>`), after the last named one. The older parser
    /// lets it replace the division of that one.
    const fn first_larger(self, last: usize) -> usize {
        match self {
            Self::Cuda => last,
            Self::Accelerator => last + 1,
        }
    }
}

/// Reason that settings are refused, with advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

const KNOWN: &str = "expandable_segments:True, max_split_size_mb:N, max_non_split_rounding_mb:N, \
                     large_segment_size_mb:N and roundup_power2_divisions:N";

impl AllocatorSettings {
    /// Settings without the variable.
    pub const DEFAULT: Self = Self {
        expandable: false,
        max_split: u64::MAX,
        max_non_split_rounding: LARGE_SEGMENT,
        large_segment: LARGE_SEGMENT,
        roundup: [0; INTERVALS],
    };

    /// Parses settings such as `expandable_segments:True,max_split_size_mb:128`, as the newest PyTorch reads them.
    ///
    /// # Errors
    /// If the text is malformed, or names a setting that cannot be simulated.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        Self::parse_for(text, None)
    }

    /// Parses settings as a version of PyTorch reads them, such as `2.15.0+cu132`.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_for(text: &str, torch: Option<&str>) -> Result<Self, SettingsError> {
        let parser = SettingsParser::of_torch(torch);
        let mut settings = Self::default();
        let mut given = Vec::new();
        for part in parts(text)? {
            let Some((name, value)) = part.split_once(':') else {
                return Err(error(format!(
                    "{part:?} is no setting: give NAME:VALUE, such as {KNOWN}"
                )));
            };
            let (name, value) = (name.trim(), value.trim());
            if given.contains(&name) {
                return Err(error(format!("{name} is given twice: give it once")));
            }
            given.push(name);
            settings.set(name, value, parser)?;
        }
        settings.fit_large_segments(&given)?;
        if settings.expandable && !settings.large_segment.is_multiple_of(PAGE) {
            return Err(error(
                "CUDA maps pages of 2 MiB: with expandable_segments, give an even large_segment_size_mb".to_owned(),
            ));
        }
        Ok(settings)
    }

    /// Parses the settings of a recorded run, without those that change no memory of a device.
    ///
    /// `garbage_collection_threshold` is one of them: it acts only below the limit of
    /// `set_per_process_memory_fraction()`, which programs seldom set.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_recorded(text: &str, torch: Option<&str>) -> Result<Self, SettingsError> {
        let parts = parts(text)?.into_iter();
        let parts: Vec<&str> = parts.filter(|part| !is_of_host(name_of(part))).collect();
        match parts.is_empty() {
            true => Ok(Self::DEFAULT),
            false => Self::parse_for(&parts.join(","), torch),
        }
    }

    /// Checks and completes the settings whose least value is `large_segment_size_mb`, as
    /// `AcceleratorAllocatorConfig::parseArgs` does.
    fn fit_large_segments(&mut self, given: &[&str]) -> Result<(), SettingsError> {
        if !given.contains(&"max_non_split_rounding_mb") {
            self.max_non_split_rounding = self.large_segment;
        }
        for (name, size) in [
            ("max_split_size_mb", self.max_split),
            ("max_non_split_rounding_mb", self.max_non_split_rounding),
        ] {
            if size < self.large_segment {
                return Err(error(format!(
                    "{name} is at least large_segment_size_mb, which is {}",
                    self.large_segment / MIB
                )));
            }
        }
        Ok(())
    }

    /// Returns the value that a text gives a setting.
    pub fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
        let parts = parts(text).ok()?;
        let part = parts.into_iter().find(|part| name_of(part) == name)?;
        Some(part.split_once(':')?.1.trim())
    }

    /// True if the meaning of a text depends on the version of PyTorch.
    pub fn depends_on_version(text: &str) -> bool {
        Self::value(text, "roundup_power2_divisions").is_some_and(|list| list.contains('>'))
    }

    fn set(
        &mut self,
        name: &str,
        value: &str,
        parser: SettingsParser,
    ) -> Result<(), SettingsError> {
        match name {
            "expandable_segments" => {
                self.expandable = match value {
                    "True" => true,
                    "False" => false,
                    _ => return Err(error("expandable_segments is True or False".to_owned())),
                }
            }
            "max_split_size_mb" => self.max_split = mib(name, value, parser.least_split())?,
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = mib(name, value, parser.least_split())?;
            }
            "large_segment_size_mb" => self.large_segment = mib(name, value, 11)?.min(MOST),
            "roundup_power2_divisions" => self.roundup = roundup(value, parser)?,
            "garbage_collection_threshold" => {
                return Err(error(
                    "garbage_collection_threshold acts only below the limit of \
                     torch.cuda.set_per_process_memory_fraction(), which no recording has: leave it out"
                        .to_owned(),
                ));
            }
            "backend" => {
                return Err(error(
                    "only PyTorch's native allocator is simulated: leave backend out".to_owned(),
                ));
            }
            name if is_of_host(name) => {
                return Err(error(format!(
                    "{name} changes no memory of a device: leave it out"
                )));
            }
            _ => {
                return Err(error(format!(
                    "{name} is not simulated: give one or more of {KNOWN}"
                )));
            }
        }
        Ok(())
    }

    /// Size of a block for a request (`round_size`).
    pub(super) fn rounded(&self, size: u64) -> u64 {
        let divisions = self.divisions(size);
        if divisions > 1 && size > LEAST * divisions {
            return next_division(size, divisions);
        }
        size.next_multiple_of(LEAST).max(LEAST)
    }

    fn divisions(&self, size: u64) -> u64 {
        let interval = size
            .checked_ilog2()
            .unwrap_or(0)
            .saturating_sub(MIB.ilog2());
        self.roundup[(interval as usize).min(INTERVALS - 1)]
    }
}

/// Rounds up to the next of so many equal parts between two powers of two.
fn next_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1 << size.ilog2();
    match floor >> divisions.ilog2() {
        0 => floor << 1,
        step => size.next_multiple_of(step),
    }
}

fn name_of(part: &str) -> &str {
    part.split(':').next().unwrap_or_default().trim()
}

/// True for settings of pinned host memory, of locks and errors, and for one that needs a limit of its own.
fn is_of_host(name: &str) -> bool {
    name.starts_with("pinned_")
        || matches!(
            name,
            "garbage_collection_threshold"
                | "release_lock_on_cudamalloc"
                | "release_lock_on_hipmalloc"
                | "throw_on_cudamalloc_oom"
        )
}

fn error(text: String) -> SettingsError {
    SettingsError(text)
}

/// Splits at commas outside brackets.
fn parts(text: &str) -> Result<Vec<&str>, SettingsError> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    if depth != 0 || parts.iter().any(|part| part.is_empty()) {
        return Err(error(format!(
            "give settings as in PYTORCH_CUDA_ALLOC_CONF: {KNOWN}"
        )));
    }
    Ok(parts)
}

/// Parses a size in MiB of at least `least`, as PyTorch limits it.
fn mib(name: &str, value: &str, least: u64) -> Result<u64, SettingsError> {
    let number = value.parse::<u64>().ok().filter(|number| *number >= least);
    let bytes = number.and_then(|number| number.checked_mul(MIB));
    bytes.ok_or_else(|| error(format!("{name} is a number of MiB of at least {least}")))
}

/// Parses `8`, or `[256:1,512:2,>:8]`: divisions from a size in MiB on.
fn roundup(value: &str, parser: SettingsParser) -> Result<[u64; INTERVALS], SettingsError> {
    let wrong = || {
        error(
            "roundup_power2_divisions is a power of two such as 8, or a list such as [256:1,512:2,1024:4,>:8]"
                .to_owned(),
        )
    };
    let divisions = |text: &str| {
        let number = text.trim().parse::<u64>().ok();
        number
            .filter(|number| *number == 0 || number.is_power_of_two() && *number <= 1 << 40)
            .ok_or_else(wrong)
    };
    let list = value
        .strip_prefix('[')
        .and_then(|list| list.strip_suffix(']'));
    let Some(list) = list else {
        return Ok([divisions(value)?; INTERVALS]);
    };
    let mut intervals = [0; INTERVALS];
    // PyTorch's index of the last named size.
    let mut last = 0;
    for (at, entry) in list.split(',').enumerate() {
        let (from, number) = entry.split_once(':').ok_or_else(wrong)?;
        let number = divisions(number)?;
        if from.trim() == ">" {
            intervals[parser.first_larger(last)..].fill(number);
            continue;
        }
        let mib = from
            .trim()
            .parse::<u64>()
            .ok()
            .filter(|mib| mib.is_power_of_two());
        last = (mib.ok_or_else(wrong)?.ilog2() as usize).min(INTERVALS - 1);
        if at == 0 {
            intervals[..last].fill(number);
        }
        intervals[last] = number;
    }
    Ok(intervals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> AllocatorSettings {
        AllocatorSettings::parse(text).expect("settings")
    }

    #[test]
    fn settings_are_written_as_in_the_environment() {
        let settings = parsed("expandable_segments:True,max_split_size_mb:128");
        assert!(settings.expandable);
        assert_eq!(settings.max_split, 128 * MIB);
        assert_eq!(settings.max_non_split_rounding, 20 * MIB);
        let spaces = parsed(" expandable_segments : False , max_non_split_rounding_mb:30 ");
        assert!(!spaces.expandable);
        assert_eq!(spaces.max_non_split_rounding, 30 * MIB);
    }

    #[test]
    fn the_rounding_of_whole_blocks_is_that_of_large_segments() {
        let settings = parsed("large_segment_size_mb:64,max_split_size_mb:64");
        assert_eq!(settings.max_non_split_rounding, 64 * MIB);
        assert_eq!(
            parsed("large_segment_size_mb:12").max_non_split_rounding,
            12 * MIB
        );
        assert_eq!(parsed("max_split_size_mb:20").max_split, 20 * MIB);
        let old = AllocatorSettings::parse_for("max_split_size_mb:20", Some("2.6.0"));
        assert!(
            old.expect_err("refused")
                .to_string()
                .contains("at least 21")
        );
    }

    #[test]
    fn a_recorded_run_may_have_settings_of_the_host() {
        let text = "pinned_use_background_threads:True, max_split_size_mb:64,garbage_collection_threshold:0.8";
        let settings = AllocatorSettings::parse_recorded(text, None).expect("settings");
        assert_eq!(settings, parsed("max_split_size_mb:64"));
        let threshold = AllocatorSettings::value(text, "garbage_collection_threshold");
        assert_eq!(threshold, Some("0.8"));
        let host = AllocatorSettings::parse_recorded("pinned_num_register_threads:8", None);
        assert_eq!(host, Ok(AllocatorSettings::DEFAULT));
        assert!(AllocatorSettings::parse_recorded("backend:cudaMallocAsync", None).is_err());
        assert!(AllocatorSettings::parse_recorded("", None).is_err());
    }

    #[test]
    fn a_list_of_divisions_begins_at_sizes() {
        let settings = parsed("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]");
        let of = |mib: u64| settings.divisions(mib * MIB);
        let all: Vec<u64> = [0, 32, 64, 128, 256, 512, 1024, 2048, 8192]
            .map(of)
            .to_vec();
        assert_eq!(all, [8, 8, 8, 2, 4, 2, 4, 1, 1]);
        assert_eq!(parsed("roundup_power2_divisions:4").roundup, [4; INTERVALS]);
        let beyond = parsed("roundup_power2_divisions:[16384:2,65536:4]").roundup;
        assert_eq!(beyond[13..], [2, 2, 4]);
    }

    #[test]
    fn the_part_for_larger_sizes_begins_where_the_version_lets_it() {
        let divisions = |list: &str, torch| {
            let text = format!("roundup_power2_divisions:{list}");
            let settings = AllocatorSettings::parse_for(&text, torch).expect("settings");
            settings.roundup[..4].to_vec()
        };
        for (torch, named, alone) in [
            (Some("2.0.1+cu117"), [4, 8, 8, 8], [8, 8, 8, 8]),
            (Some("2.9.1"), [4, 8, 8, 8], [8, 8, 8, 8]),
            (Some("2.10.0"), [4, 2, 8, 8], [0, 8, 8, 8]),
            (Some("2.15.0+cu132"), [4, 2, 8, 8], [0, 8, 8, 8]),
            (None, [4, 2, 8, 8], [0, 8, 8, 8]),
        ] {
            assert_eq!(divisions("[1:4,2:2,>:8]", torch), named, "{torch:?}");
            assert_eq!(divisions("[>:8]", torch), alone, "{torch:?}");
        }
        assert!(AllocatorSettings::depends_on_version(
            "roundup_power2_divisions:[1:4,>:8]"
        ));
        assert!(!AllocatorSettings::depends_on_version(
            "roundup_power2_divisions:[1:4]"
        ));
    }

    #[test]
    fn sizes_are_rounded_to_parts_of_a_power_of_two() {
        let settings = parsed("roundup_power2_divisions:4");
        assert_eq!(settings.rounded(1200), 1536, "below 512 times 4");
        assert_eq!(settings.rounded(4 * MIB), 4 * MIB);
        assert_eq!(settings.rounded(4 * MIB + 1), 5 * MIB);
        assert_eq!(settings.rounded(7 * MIB + 5), 8 * MIB);
        let plain = AllocatorSettings::default();
        assert_eq!(plain.rounded(4 * MIB + 1), 4 * MIB + 512);
        assert_eq!([plain.rounded(0), plain.rounded(513)], [512, 1024]);
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_with_advice() {
        for (text, words) in [
            ("garbage_collection_threshold:0.8", "leave it out"),
            ("backend:cudaMallocAsync", "leave backend out"),
            ("pinned_use_background_threads:True", "leave it out"),
            ("per_process_memory_fraction:0.5", "not simulated"),
            ("large_segment_size_mb:10", "at least 11"),
            (
                "large_segment_size_mb:64,max_split_size_mb:63",
                "at least large",
            ),
            (
                "max_non_split_rounding_mb:30,large_segment_size_mb:64",
                "which is 64",
            ),
            ("large_segment_size_mb:13,expandable_segments:True", "even"),
            ("max_split_size_mb:19", "at least 20"),
            ("max_split_size_mb:lots", "at least 20"),
            ("expandable_segments:yes", "True or False"),
            ("expandable_segments", "NAME:VALUE"),
            ("roundup_power2_divisions:3", "power of two"),
            ("roundup_power2_divisions:[64:8", "PYTORCH_CUDA_ALLOC_CONF"),
            ("", "PYTORCH_CUDA_ALLOC_CONF"),
            ("max_split_size_mb:30,max_split_size_mb:40", "twice"),
        ] {
            let error = AllocatorSettings::parse(text).expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
