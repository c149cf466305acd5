//! User who started memprobe through sudo.

use std::ffi::{CString, OsString};
use std::path::PathBuf;

use nix::unistd::{Gid, Uid, User, getgrouplist};

const UID: &str = "SUDO_UID";
const GID: &str = "SUDO_GID";
const NAME: &str = "SUDO_USER";

/// User who called sudo, with the groups that the system's database gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SudoCaller {
    pub uid: u32,
    pub gid: u32,
    pub name: String,
    pub home: PathBuf,
    pub groups: Vec<u32>,
}

/// Reason why the variables of sudo cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}, so the user who called sudo is unknown; call memprobe through sudo again, or without its variables: \
     `env -u {UID} -u {GID} -u {NAME} memprobe ...`"
)]
pub struct CallerError(String);

impl SudoCaller {
    /// Returns the user who called sudo. `None` if memprobe does not run as root, or not through sudo, or if root
    /// called sudo.
    pub fn of_sudo() -> Result<Option<Self>, CallerError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let [uid, gid, name] = [UID, GID, NAME].map(std::env::var_os);
        Self::of(uid, gid, name)
    }

    fn of(
        uid: Option<OsString>,
        gid: Option<OsString>,
        name: Option<OsString>,
    ) -> Result<Option<Self>, CallerError> {
        if uid.is_none() && gid.is_none() && name.is_none() {
            return Ok(None);
        }
        let (uid, gid) = (number(UID, uid)?, number(GID, gid)?);
        if uid == 0 {
            return Ok(None);
        }
        let user = user(uid, name)?;
        let groups = groups(&user)?;
        if !groups.contains(&gid) {
            return Err(CallerError(format!(
                "{GID} is {gid}, which is no group of {}",
                user.name
            )));
        }
        Ok(Some(Self {
            uid,
            gid,
            name: user.name,
            home: user.dir,
            groups,
        }))
    }
}

fn number(variable: &str, value: Option<OsString>) -> Result<u32, CallerError> {
    let value = value.ok_or_else(|| CallerError(format!("{variable} is not set")))?;
    let text = value.to_string_lossy();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    // The largest number means "no change" to the kernel.
    let number = text.parse().ok().filter(|id| digits && *id != u32::MAX);
    number.ok_or_else(|| CallerError(format!("{variable} is {text:?}, which is no ID")))
}

/// Returns the entry of the system's database. `name` chooses between several names of one user ID.
fn user(uid: u32, name: Option<OsString>) -> Result<User, CallerError> {
    let unknown = |error: nix::Error| CallerError(format!("{UID} is {uid}: {error}"));
    let Some(name) = name else {
        let found = User::from_uid(Uid::from_raw(uid)).map_err(unknown)?;
        return found.ok_or_else(|| CallerError(format!("{UID} is {uid}, which is no user")));
    };
    let text = name.to_string_lossy();
    let found = User::from_name(&text).map_err(unknown)?;
    match found {
        Some(user) if user.uid.as_raw() == uid => Ok(user),
        Some(_) => Err(CallerError(format!(
            "{UID} is {uid}, which is not the user {text:?} of {NAME}"
        ))),
        None => Err(CallerError(format!("{NAME} is {text:?}, which is no user"))),
    }
}

/// Returns the user's groups, the primary one included (initgroups(3)).
fn groups(user: &User) -> Result<Vec<u32>, CallerError> {
    let failed = |reason: String| CallerError(format!("groups of {}: {reason}", user.name));
    let name = CString::new(user.name.as_str()).map_err(|error| failed(error.to_string()))?;
    let groups = getgrouplist(&name, user.gid).map_err(|error| failed(error.to_string()))?;
    Ok(groups.into_iter().map(Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: &str, gid: &str, name: &str) -> Result<Option<SudoCaller>, CallerError> {
        let set = |text: &str| (!text.is_empty()).then(|| text.into());
        SudoCaller::of(set(uid), set(gid), set(name))
    }

    fn nobody() -> User {
        User::from_name("nobody").unwrap().expect("a user")
    }

    #[test]
    fn the_caller_is_the_user_of_the_variables() {
        let user = nobody();
        let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
        let caller = of(&uid, &gid, "nobody").unwrap().expect("a caller");
        assert_eq!(caller.uid, user.uid.as_raw());
        assert_eq!((caller.name.as_str(), &caller.home), ("nobody", &user.dir));
        assert!(caller.groups.contains(&user.gid.as_raw()));
        assert_eq!(of(&uid, &gid, "").unwrap(), Some(caller));
    }

    #[test]
    fn without_sudo_and_for_root_there_is_no_caller() {
        assert_eq!(of("", "", ""), Ok(None));
        assert_eq!(of("0", "0", "root"), Ok(None));
    }

    #[test]
    fn values_that_do_not_fit_are_refused_with_what_to_do() {
        let user = nobody();
        let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
        for (uid, gid, name, reason) in [
            (uid.as_str(), "", "nobody", "SUDO_GID is not set"),
            ("", gid.as_str(), "nobody", "SUDO_UID is not set"),
            ("-1", &gid, "nobody", "no ID"),
            ("+1", &gid, "nobody", "no ID"),
            ("4294967295", &gid, "nobody", "no ID"),
            ("99999999999", &gid, "nobody", "no ID"),
            (&uid, &gid, "root", "not the user"),
            (&uid, &gid, "no such user", "no user"),
            ("4294967000", &gid, "", "no user"),
            (&uid, "0", "nobody", "no group of nobody"),
        ] {
            let error = of(uid, gid, name).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
            assert!(error.contains("env -u SUDO_UID"), "{error}");
        }
    }
}
