//! The signals that ask memprobe to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, a polite kill, and a closed terminal.
pub(super) struct Interrupts {
    signals: [Signal; 3],
}

impl Interrupts {
    /// Listens from now on. What comes while nobody waits is kept.
    pub(super) fn new() -> io::Result<Self> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self {
            signals: [interrupt?, terminate?, hangup?],
        })
    }

    pub(super) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
