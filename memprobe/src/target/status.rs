//! Whose a process is and how its own PID namespace numbers it: `/proc/PID/status` (`proc(5)`).

use super::facts;
use crate::event::Tgid;

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// The user in whose name it acts; `None` where the process is gone.
    pub user: Option<u32>,
    /// Its number in the innermost of its PID namespaces, where that is not memprobe's.
    pub inside: Option<u32>,
}

impl Status {
    /// Of this process; nothing is known of one that is gone.
    pub fn of(tgid: Tgid) -> Self {
        let text = facts::read(&format!("/proc/{}/status", tgid.0));
        Self::parse(&String::from_utf8_lossy(&text), tgid)
    }

    fn parse(text: &str, tgid: Tgid) -> Self {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.strip_prefix(':'))
        };
        let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
        // "Uid: real effective saved filesystem".
        let user = field("Uid").and_then(|users| number(users.split_whitespace().nth(1)));
        // "NSpid: " and its number in each namespace, memprobe's own first.
        let inside = field("NSpid").and_then(|all| number(all.split_whitespace().last()));
        Self {
            user,
            inside: inside.filter(|inside| *inside != tgid.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acting_user_and_the_innermost_number_are_told() {
        let text = "Name:\tpython\nUid:\t1000\t1001\t1001\t1001\nNSpid:\t4711\t92\t7\n";
        let status = Status::parse(text, Tgid(4711));
        assert_eq!((status.user, status.inside), (Some(1001), Some(7)));
    }

    #[test]
    fn a_process_without_a_namespace_of_its_own_has_no_other_number() {
        let text = "Name:\tUid: 5 5\nUid:\t0\t0\t0\t0\nNSpid:\t4711\n";
        let status = Status::parse(text, Tgid(4711));
        assert_eq!((status.user, status.inside), (Some(0), None));
    }

    #[test]
    fn of_what_is_gone_or_makes_no_sense_nothing_is_known() {
        assert_eq!(Status::of(Tgid(0)), Status::default());
        let nonsense = "Uid:\tx y\nNSpid:\t99999999999\nUidx:\t1\t1\n";
        assert_eq!(Status::parse(nonsense, Tgid(1)), Status::default());
    }

    #[test]
    fn this_process_has_a_user() {
        assert!(Status::of(Tgid(std::process::id())).user.is_some());
    }
}
