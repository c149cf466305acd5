//! The command for whose length a process is suspended.

use anyhow::{Context as _, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::commands::record::Start;
use crate::commands::{EndSignal, Interrupts, messages};

/// Starts the command and waits for its end. Returns its exit status, as a shell gives it.
///
/// The terminal sends Ctrl-C to the command itself. Other signals to memprobe are passed on: the command decides when
/// it ends.
pub(super) async fn run(start: Start, interrupts: &mut Interrupts) -> Result<u8> {
    let mut started = start.spawn()?;
    let pid = i32::try_from(started.tgid().0).ok().and_then(Pid::from_raw);
    let handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut wait = tokio::task::spawn_blocking(move || started.exit_status());
    loop {
        tokio::select! {
            status = &mut wait => return status.context("waiting for the command")?,
            signal = interrupts.next() => {
                let name = passed_on(signal).filter(|_| handle.is_some());
                if let (Some(number), Some(handle)) = (name, &handle) {
                    // A command that has just ended needs none.
                    let _ = pidfd_send_signal(handle, number);
                }
                messages::print("waiting for the command to end; then the process is resumed");
            }
        }
    }
}

/// Returns the signal for the command; `None` for one that the terminal has sent to it already.
fn passed_on(signal: EndSignal) -> Option<Signal> {
    if signal.is_of_keyboard() {
        return None;
    }
    Some(if signal == EndSignal::HANGUP {
        Signal::HUP
    } else {
        Signal::TERM
    })
}
