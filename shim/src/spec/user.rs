//! Who a container runs as, from the request, the image's User and the image's passwd and group
//! files. Pure: the files' texts come in. The rules are containerd's (WithUser, WithAdditionalGIDs).

use super::Error;

/// The texts a lookup needs; empty when the image has no such file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Accounts {
    /// /etc/passwd.
    pub passwd: String,
    /// /etc/group.
    pub group: String,
}

/// What the request and the image ask for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct UserRequest<'a> {
    /// run_as_user.
    pub uid: Option<i64>,
    /// run_as_group.
    pub gid: Option<i64>,
    /// run_as_username.
    pub name: &'a str,
    /// User of the image's config: `user`, `uid`, `user:group`…
    pub image: &'a str,
    /// supplemental_groups.
    pub supplemental: &'a [i64],
    /// Policy Strict: the image's /etc/group adds nothing.
    pub strict: bool,
}

/// Who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// All groups, the primary one too, sorted.
    pub groups: Vec<u32>,
    /// Home folder.
    pub home: String,
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// runc's and containerd's limit; the number above the last, -1, means "no change" to setresuid(2).
const MAX_ID: u32 = i32::MAX as u32;

/// The kernel's (NGROUPS_MAX): setgroups(2) takes no more.
const MAX_GROUPS: usize = 65_536;

/// A number in the text, if it is one that can be an id.
fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| is_number(text) && *id <= MAX_ID)
}

/// Digits are an id, never a name: an image could name its root user "1000".
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The user of an image's `user[:group]`, as ImageStatus tells it: an id, or a name; neither when the image
/// names none. What is told as an id here runs as that id, or not at all.
pub(crate) fn of_image(config: &str) -> (Option<i64>, String) {
    let user = config.split(':').next().unwrap_or_default();
    match user.parse() {
        Ok(uid) if is_number(user) => (Some(uid), String::new()),
        _ => (None, user.to_owned()),
    }
}

/// A number with a sign is not looked up as a name: other programs read it as a number
/// (CVE-2026-46680 is of this kind).
fn check_sign(text: &str, field: &'static str) -> Result<(), Error> {
    if text.starts_with(['+', '-']) {
        let expected = "a number without a sign, or a name";
        return Err(Error::Invalid { field, value: text.to_owned(), expected });
    }
    Ok(())
}

fn entries(passwd: &str) -> impl Iterator<Item = PasswdEntry<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, uid, gid) = (fields.next()?, fields.nth(1)?, fields.next()?);
        Some(PasswdEntry { name, uid: id(uid)?, gid: id(gid)?, home: fields.nth(1).unwrap_or("/") })
    })
}

fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, gid) = (fields.next()?, fields.nth(1)?);
        Some((name, id(gid)?, fields.next().unwrap_or("")))
    })
}

fn number(value: i64, field: &'static str) -> Result<u32, Error> {
    u32::try_from(value).ok().filter(|id| *id <= MAX_ID).ok_or_else(|| Error::Invalid {
        field,
        value: value.to_string(),
        expected: "a number from 0 to 2147483647",
    })
}

/// Resolves the user.
///
/// # Errors
/// A name that the image does not have, a group without a user, or more groups than a process can have.
pub(crate) fn resolve(wanted: &UserRequest<'_>, accounts: &Accounts) -> Result<ProcessUser, Error> {
    let (user, group) = match (wanted.uid, wanted.name, wanted.image) {
        (Some(uid), _, _) => (number(uid, "run_as_user")?.to_string(), None),
        (None, name, _) if !name.is_empty() => (name.to_owned(), None),
        (None, _, _) if wanted.gid.is_some() => return Err(Error::GroupWithoutUser),
        (None, _, "") => ("0".to_owned(), None),
        (None, _, image) => match image.split_once(':') {
            Some((user, group)) => (user.to_owned(), Some(group)),
            None => (image.to_owned(), None),
        },
    };
    check_sign(&user, "user")?;
    check_sign(group.unwrap_or_default(), "group of the image's user")?;
    let entry = entries(&accounts.passwd)
        .find(|entry| if is_number(&user) { Some(entry.uid) == id(&user) } else { entry.name == user });
    let (uid, mut gid, name, home) = match (&entry, id(&user)) {
        (Some(entry), _) => (entry.uid, entry.gid, entry.name, entry.home),
        // A number nobody has a name for is fine, and has group 0.
        (None, Some(uid)) => (uid, 0, "", "/"),
        (None, None) => return Err(Error::UnknownUser { user }),
    };
    if let Some(group) = group.filter(|group| !group.is_empty()) {
        let matches =
            |name: &str, gid: u32| if is_number(group) { Some(gid) == id(group) } else { name == group };
        let found = groups(&accounts.group).find(|(name, gid, _)| matches(name, *gid));
        gid = match (found, id(group)) {
            (Some((_, gid, _)), _) => gid,
            (None, Some(gid)) => gid,
            (None, None) => return Err(Error::UnknownGroup { group: group.to_owned() }),
        };
    }
    if let Some(wanted) = wanted.gid {
        gid = number(wanted, "run_as_group")?;
    }
    let mut all = vec![gid];
    if !wanted.strict && !name.is_empty() {
        all.extend(
            groups(&accounts.group)
                .filter(|(_, _, members)| members.split(',').any(|m| m == name))
                .map(|g| g.1),
        );
    }
    for group in wanted.supplemental {
        all.push(number(*group, "supplemental_groups")?);
    }
    all.sort_unstable();
    all.dedup();
    if all.len() > MAX_GROUPS {
        return Err(Error::TooMany { what: "groups of the user", count: all.len(), most: MAX_GROUPS });
    }
    Ok(ProcessUser { uid, gid, groups: all, home: home.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:w:/srv:/bin/sh\n".into(),
            group: "root:x:0:\nweb:x:102:\nlogs:x:50:web,other\n".into(),
        }
    }

    #[test]
    fn a_name_brings_its_group_its_groups_and_its_home() {
        let user = resolve(&UserRequest { image: "web", ..UserRequest::default() }, &accounts()).unwrap();
        assert_eq!(user, ProcessUser { uid: 101, gid: 102, groups: vec![50, 102], home: "/srv".into() });
        let strict = resolve(
            &UserRequest { image: "web", strict: true, supplemental: &[7], ..UserRequest::default() },
            &accounts(),
        );
        assert_eq!(strict.unwrap().groups, [7, 102]);
    }

    #[test]
    fn the_request_wins_over_the_image() {
        let wanted = UserRequest { uid: Some(2000), gid: Some(3000), image: "web", ..UserRequest::default() };
        let user = resolve(&wanted, &accounts()).unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (2000, 3000, vec![3000]));
        let user =
            resolve(&UserRequest { image: "101:logs", ..UserRequest::default() }, &accounts()).unwrap();
        assert_eq!((user.uid, user.gid), (101, 50));
    }

    #[test]
    fn a_number_is_never_a_name_and_minus_one_is_no_id() {
        let accounts = Accounts { passwd: "1000:x:0:0::/:/bin/sh\n".into(), group: "1000:x:0:\n".into() };
        let user = resolve(&UserRequest { uid: Some(1000), ..UserRequest::default() }, &accounts).unwrap();
        assert_eq!(user.uid, 1000);
        let user = resolve(&UserRequest { image: "1000:1000", ..UserRequest::default() }, &accounts).unwrap();
        assert_eq!((user.uid, user.gid), (1000, 1000));
        assert!(
            resolve(&UserRequest { uid: Some(4_294_967_295), ..UserRequest::default() }, &accounts).is_err()
        );
        assert!(resolve(&UserRequest { image: "4294967295", ..UserRequest::default() }, &accounts).is_err());
    }

    #[test]
    fn a_number_with_a_sign_is_neither_a_number_nor_a_name() {
        let passwd = "+1000:x:0:0::/:/bin/sh\n-1:x:0:0::/:/bin/sh\nplus:x:+7:+7::/:/bin/sh\n";
        let accounts = Accounts { passwd: passwd.into(), group: "+5:x:0:\n".into() };
        for image in ["+1000", "-1", "+1000:0", "1:+5", "plus"] {
            let refused = resolve(&UserRequest { image, ..UserRequest::default() }, &accounts);
            assert!(refused.is_err(), "{image}: {refused:?}");
        }
        assert!(resolve(&UserRequest { name: "+1000", ..UserRequest::default() }, &accounts).is_err());
    }

    #[test]
    fn more_groups_than_a_process_can_have_are_refused_when_the_container_is_made() {
        let passwd = "web:x:101:0::/:/bin/sh\n".to_owned();
        let groups = |last: u32| (1..=last).map(|gid| format!("g:x:{gid}:web\n")).collect::<String>();
        let web = UserRequest { image: "web", ..UserRequest::default() };
        let most = resolve(&web, &Accounts { passwd: passwd.clone(), group: groups(65_535) }).unwrap();
        assert_eq!(most.groups.len(), 65_536, "with the primary one");
        let refused = resolve(&web, &Accounts { passwd, group: groups(65_536) }).unwrap_err();
        assert!(refused.to_string().contains("65537"), "{refused}");
    }

    #[test]
    fn unknown_names_and_a_lone_group_are_refused() {
        let check = |wanted: UserRequest<'_>| resolve(&wanted, &accounts()).unwrap_err();
        assert_eq!(
            check(UserRequest { image: "ghost", ..UserRequest::default() }),
            Error::UnknownUser { user: "ghost".into() }
        );
        assert_eq!(
            check(UserRequest { image: "web:ghost", ..UserRequest::default() }),
            Error::UnknownGroup { group: "ghost".into() }
        );
        assert_eq!(check(UserRequest { gid: Some(1), ..UserRequest::default() }), Error::GroupWithoutUser);
    }
}
