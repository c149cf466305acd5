//! Namespaces: detects processes that see the machine differently from memprobe.

use std::fs;
use std::path::Path;

use strum::VariantArray as _;

use crate::event::Tgid;

/// A kind of namespace (`namespaces(7)`), with the name of its link in `/proc/PID/ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Kind {
    #[strum(serialize = "mnt")]
    Mount,
    Pid,
    User,
    Net,
    Uts,
    Cgroup,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Pid => "PID",
            Self::User => "user",
            Self::Net => "network",
            Self::Uts => "host name",
            Self::Cgroup => "cgroup",
        }
    }
}

/// The ID of a namespace; processes that share the namespace have equal IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace(u64);

impl Namespace {
    /// The initial PID namespace, in which the kernel's own numbers are (`PROC_PID_INIT_INO`,
    /// include/linux/proc_ns.h; the same since Linux 3.8).
    pub const FIRST_PID: Self = Self(0xefff_fffc);
    /// The initial user namespace, whose capabilities apply to the whole machine (`PROC_USER_INIT_INO`).
    pub const FIRST_USER: Self = Self(0xefff_fffd);

    /// Returns a process's namespace; `None` if memprobe may not inspect it or the process has ended.
    pub fn of(tgid: Tgid, kind: Kind) -> Option<Self> {
        Self::read(&tgid.0.to_string(), kind)
    }

    pub fn of_memprobe(kind: Kind) -> Option<Self> {
        Self::read("self", kind)
    }

    fn read(process: &str, kind: Kind) -> Option<Self> {
        let link = fs::read_link(format!("/proc/{process}/ns/{}", kind.into_str())).ok()?;
        Self::parse(link.to_str()?)
    }

    fn parse(link: &str) -> Option<Self> {
        let (_, number) = link.split_once(":[")?;
        number.strip_suffix(']')?.parse().ok().map(Self)
    }
}

/// Returns the kinds of namespaces that a process does not share with memprobe. Unreadable ones are left out.
pub fn foreign(tgid: Tgid) -> Vec<Kind> {
    let is_foreign = |kind: &Kind| {
        let theirs = Namespace::of(tgid, *kind);
        theirs.is_some() && theirs != Namespace::of_memprobe(*kind)
    };
    Kind::VARIANTS.iter().copied().filter(is_foreign).collect()
}

/// True if a process has another root directory than memprobe (chroot, container); `None` if unreadable.
pub fn has_other_root(tgid: Tgid) -> Option<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let link = format!("/proc/{}/root", tgid.0);
    // One directory may be mounted twice; then only the name differs.
    if fs::read_link(&link).ok()? != Path::new("/") {
        return Some(true);
    }
    let theirs = fs::metadata(link + "/").ok()?;
    let ours = fs::metadata("/").ok()?;
    Some((theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_known_by_its_number() {
        assert_eq!(
            Namespace::parse("pid:[4026531836]"),
            Some(Namespace::FIRST_PID)
        );
        assert_eq!(
            Namespace::parse("user:[4026531837]"),
            Some(Namespace::FIRST_USER)
        );
        assert_eq!(Namespace::parse("user:[]"), None);
        assert_eq!(Namespace::parse("/etc/passwd"), None);
    }

    #[test]
    fn a_process_shares_all_namespaces_with_itself() {
        let tgid = Tgid(std::process::id());
        assert!(Namespace::of(tgid, Kind::Pid).is_some());
        assert_eq!(foreign(tgid), []);
        assert_eq!(has_other_root(tgid), Some(false));
    }

    #[test]
    fn a_process_that_is_gone_has_none() {
        let nobody = Tgid(u32::MAX);
        assert_eq!(Namespace::of(nobody, Kind::User), None);
        assert_eq!(foreign(nobody), []);
        assert_eq!(has_other_root(nobody), None);
    }
}
