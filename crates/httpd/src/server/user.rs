//! The user that a server runs as.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::str::FromStr;

use nix::unistd;

/// A user, and the group that a process of this user has: `USER` or `USER:GROUP`, by names or numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    text: String,
    name: CString,
    uid: unistd::Uid,
    gid: unistd::Gid,
}

impl User {
    /// Returns the number of the user.
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Changes the user, the group and the supplementary groups of the process, of all its threads: the C library
    /// does so (nptl(7)). Does nothing if the process has this user and group already.
    pub(crate) fn assume(&self) -> io::Result<()> {
        let User { name, uid, gid, .. } = self;
        let has_user =
            unistd::getresuid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [*uid; 3]);
        let has_group =
            unistd::getresgid().is_ok_and(|ids| [ids.real, ids.effective, ids.saved] == [*gid; 3]);
        if has_user && has_group {
            return Ok(());
        }
        unistd::initgroups(name, *gid)?;
        unistd::setresgid(*gid, *gid, *gid)?;
        // The last one, as it takes the right to change the others.
        unistd::setresuid(*uid, *uid, *uid)?;
        Ok(())
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, group) = match text.split_once(':') {
            Some((name, group)) => (name, Some(group)),
            None => (text, None),
        };
        let user = match name.parse() {
            Ok(uid) => unistd::User::from_uid(unistd::Uid::from_raw(uid)),
            Err(_) => unistd::User::from_name(name),
        };
        let user = user.map_err(|error| format!("cannot look up the user `{name}`: {error}"))?;
        let user = user.ok_or_else(|| {
            format!(
                "there is no user `{name}`: add one (`useradd --system {name}`), or name another"
            )
        })?;
        let gid = match group {
            None => user.gid,
            Some(name) => {
                let group = match name.parse() {
                    Ok(gid) => unistd::Group::from_gid(unistd::Gid::from_raw(gid)),
                    Err(_) => unistd::Group::from_name(name),
                };
                let group =
                    group.map_err(|error| format!("cannot look up the group `{name}`: {error}"))?;
                let group = group.ok_or_else(|| {
                    format!("there is no group `{name}`: add one (`groupadd --system {name}`), or name another")
                })?;
                group.gid
            }
        };
        let name = CString::new(user.name).map_err(|_| "a name has no zero byte".to_owned())?;
        Ok(User { text: text.to_owned(), name, uid: user.uid, gid })
    }
}

/// Formats the text from which the user was parsed.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
