//! Name of a process: its PIDs and its container.

use super::text::{CUT, clean, fit};
use crate::event::Target;

/// Columns of a container's name.
const CONTAINER: usize = 32;

/// Returns `PID 20292`, or `PID 20292 (7 in trainer-0)` for a process in another PID namespace or container:
/// its PID in memprobe's namespace, its PID in its own, its container.
pub fn process(target: &Target) -> Option<String> {
    let tgid = target.tgid?;
    let container = target.container.as_deref().map(clean);
    let container = container.map(|name| fit(&name, CONTAINER, CUT));
    let inside = match (target.inner_tgid, container) {
        (None, None) => return Some(format!("PID {}", tgid.0)),
        (None, Some(container)) => container,
        (Some(inner), None) => format!("{} in its own namespace", inner.0),
        (Some(inner), Some(container)) => format!("{} in {container}", inner.0),
    };
    Some(format!("PID {} ({inside})", tgid.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Tgid;

    #[test]
    fn a_process_in_a_container_shows_both_pids() {
        let mut target = Target::default();
        assert_eq!(process(&target), None);
        target.tgid = Some(Tgid(20292));
        assert_eq!(process(&target).as_deref(), Some("PID 20292"));
        target.inner_tgid = Some(Tgid(7));
        let alone = process(&target);
        assert_eq!(alone.as_deref(), Some("PID 20292 (7 in its own namespace)"));
        target.container = Some("trainer-0\x1b[31m".to_owned());
        let named = process(&target);
        assert_eq!(
            named.as_deref(),
            Some("PID 20292 (7 in trainer-0\\u{1b}[31m)")
        );
        target.inner_tgid = None;
        target.container = Some("slurm:4711".to_owned());
        assert_eq!(process(&target).as_deref(), Some("PID 20292 (slurm:4711)"));
    }

    #[test]
    fn an_endless_name_is_cut() {
        let target = Target {
            tgid: Some(Tgid(1)),
            container: Some("x".repeat(500)),
            ..Target::default()
        };
        assert!(process(&target).is_some_and(|text| text.len() < 60));
    }
}
