//! Names of users.

use nix::unistd::{Uid, User};

/// The name that memprobe's system has for a user, as `ps` shows it; `None` where it has none, as
/// for users that only a container knows.
pub fn name(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid))
        .ok()
        .flatten()
        .map(|user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_a_user_that_nobody_made_has_none() {
        assert_eq!(name(0).as_deref(), Some("root"));
        assert_eq!(name(u32::MAX - 7), None);
    }
}
