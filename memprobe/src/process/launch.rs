//! Start of a command as the user who called sudo.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::caller::SudoCaller;

/// Variables of sudo, which a program without root has no use for.
const OF_SUDO: [&str; 4] = ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND"];

/// Starts a command with the user ID, groups, and home of `caller`, and no capabilities. The rest of the environment
/// is as sudo kept it.
pub fn start_as(command: &mut Command, caller: &SudoCaller) -> io::Result<Child> {
    prepare(command, caller);
    command.spawn()
}

/// Becomes a command in place of this program, with a caller as [`start_as`]. Returns only the error if it cannot.
pub fn become_as(command: &mut Command, caller: Option<&SudoCaller>) -> io::Error {
    if let Some(caller) = caller {
        prepare(command, caller);
    }
    command.exec()
}

fn prepare(command: &mut Command, caller: &SudoCaller) {
    for variable in OF_SUDO {
        command.env_remove(variable);
    }
    command.env("HOME", &caller.home);
    command
        .env("USER", &caller.name)
        .env("LOGNAME", &caller.name);
    let groups: Vec<Gid> = caller.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
    // The groups first: only root may change them. The kernel takes the capabilities with the last user ID of root.
    let become_caller = move || {
        setgroups(&groups)?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
        Ok(())
    };
    // SAFETY: between fork and exec it only makes system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(become_caller) };
}
