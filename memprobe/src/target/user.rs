//! Names of users, as this machine knows them.

use std::collections::HashMap;

/// Names of users by number, each looked up once: a directory service may be slow.
#[derive(Debug, Default)]
pub struct Users {
    names: HashMap<u32, String>,
}

impl Users {
    /// The name of a user, or the number where it has no name here (as in a container whose users
    /// this machine does not know).
    pub fn name(&mut self, user: u32) -> &str {
        self.names.entry(user).or_insert_with(|| {
            let known = uzers::get_user_by_uid(user);
            known.map_or_else(
                || user.to_string(),
                |known| known.name().to_string_lossy().into_owned(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_called_by_name_where_they_have_one() {
        let mut users = Users::default();
        assert_eq!(users.name(0), "root");
        assert_eq!(users.name(3_999_999_999), "3999999999");
    }
}
