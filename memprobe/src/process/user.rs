use nix::unistd::{Uid, User};

/// Returns the user name that memprobe's system has for an ID, as `ps` shows it. `None` for unknown users,
/// such as those that exist only in a container.
pub fn name(uid: u32) -> Option<String> {
    let user = User::from_uid(Uid::from_raw(uid)).ok()?;
    user.map(|user| user.name)
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
