//! Identity of the running kernel.

use std::fs;

/// Longest ID that is accepted; the kernel writes a UUID of 36 characters (`proc_do_uuid`, drivers/char/random.c@v6.1).
const MAX_ID: usize = 64;

/// Returns the kernel's ID of this boot, the same in all containers of a machine; `None` if it cannot be read.
pub fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = text.trim_end();
    let is_id = |letter: char| letter.is_ascii_hexdigit() || letter == '-';
    let is_plausible = !id.is_empty() && id.len() <= MAX_ID && id.chars().all(is_id);
    is_plausible.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_boot_stays_the_same() {
        let id = boot_id().expect("Linux has one");
        assert_eq!(id.len(), 36, "{id}");
        assert_eq!(boot_id(), Some(id));
    }
}
