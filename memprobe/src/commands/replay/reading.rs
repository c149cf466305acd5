//! Opening of a recording: from its keyframes at once, while another thread reads the whole of it for the analyses.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;

use tokio::sync::oneshot;

use crate::commands::process_view::ScreenAnalyses;
use crate::commands::waiting::show_while;
use crate::recording::{RecordingError, SeekableRecording};
use crate::replay::{Player, ReplayProgress};
use crate::view::{clean, counted};

/// A replay with the analyses of the screens; without them until the whole recording is read.
pub(super) type ScreenPlayer = Player<Option<ScreenAnalyses>>;

/// A recording that can be shown.
pub(super) struct OpenedRecording {
    pub player: ScreenPlayer,
    /// Reading of the whole recording, if the player has keyframes alone.
    pub reading: Option<RecordingReading>,
}

/// Part of a recording that is read before it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenBy {
    /// Keyframes and curve, where the file has them.
    Keyframes,
    WholeRecording,
}

impl OpenedRecording {
    pub(super) fn open(file: &Path, by: OpenBy) -> Result<Self, RecordingError> {
        let name = clean(&file.display().to_string());
        let (copied, replayed) = (AtomicU64::new(0), AtomicU64::new(0));
        let line = || {
            let replayed = replayed.load(Ordering::Relaxed);
            let (verb, events) = match replayed {
                0 => ("reading", copied.load(Ordering::Relaxed)),
                _ => ("replaying", replayed),
            };
            format!("{verb} {name}: {}", counted(events, "event"))
        };
        show_while(line, || {
            let recording = SeekableRecording::open(file, |events| {
                copied.store(events, Ordering::Relaxed);
                Ok(())
            })?;
            let player = match by {
                OpenBy::Keyframes => Player::from_keyframes(&recording, None)?,
                OpenBy::WholeRecording => None,
            };
            if let Some(player) = player {
                let reading = Some(RecordingReading::start(recording, player.overview.events)?);
                return Ok(Self { player, reading });
            }
            let player = read(recording, |events| {
                replayed.store(events, Ordering::Relaxed);
                Ok(())
            })?;
            Ok(Self {
                player,
                reading: None,
            })
        })
    }
}

/// Replays a whole recording.
fn read(
    recording: SeekableRecording,
    progress: impl Fn(u64) -> Result<(), RecordingError>,
) -> Result<ScreenPlayer, RecordingError> {
    let analyses = Some(ScreenAnalyses::default());
    Player::open(recording, analyses, |now| match now {
        ReplayProgress::Replayed(events) => progress(events),
        ReplayProgress::Copied(_) => Ok(()),
    })
}

/// Reading of a whole recording on another thread, which ends when this is dropped.
pub(super) struct RecordingReading {
    outcome: oneshot::Receiver<Result<ScreenPlayer, RecordingError>>,
    replayed: Arc<AtomicU64>,
    is_dropped: Arc<AtomicBool>,
    /// Memory events of the recording.
    all: u64,
}

impl RecordingReading {
    fn start(recording: SeekableRecording, all: u64) -> Result<Self, RecordingError> {
        let (send, outcome) = oneshot::channel();
        let reading = Self {
            outcome,
            replayed: Arc::default(),
            is_dropped: Arc::default(),
            all,
        };
        let replayed = Arc::clone(&reading.replayed);
        let is_dropped = Arc::clone(&reading.is_dropped);
        let thread = Builder::new().name("memprobe-read".to_owned());
        thread.spawn(move || {
            let outcome = read(recording, |events| {
                replayed.store(events, Ordering::Relaxed);
                match is_dropped.load(Ordering::Relaxed) {
                    true => Err(interrupted("nobody waits for the recording")),
                    false => Ok(()),
                }
            });
            // Without a receiver nobody waits for it.
            let _ = send.send(outcome);
        })?;
        Ok(reading)
    }

    /// Share of the events that are read, in percent.
    pub(super) fn percent(&self) -> u8 {
        let replayed = self.replayed.load(Ordering::Relaxed).min(self.all);
        let percent = u128::from(replayed) * 100 / u128::from(self.all.max(1));
        percent as u8
    }

    /// Waits for the end of the reading.
    pub(super) async fn finished(&mut self) -> Result<ScreenPlayer, RecordingError> {
        let outcome = (&mut self.outcome).await;
        outcome.unwrap_or_else(|_| {
            Err(interrupted(
                "the thread that reads it has panicked; report that",
            ))
        })
    }
}

fn interrupted(reason: &'static str) -> RecordingError {
    RecordingError::Io(std::io::Error::other(reason))
}

impl Drop for RecordingReading {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}
