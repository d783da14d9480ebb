//! Archives as a container may make them.

use tar::{Builder, EntryType, Header};

use super::*;

/// Type, name, link and content of each entry.
type Entries<'a> = &'a [(EntryType, &'a str, &'a str, &'a str)];

/// Byte by byte: the crate refuses what is hostile.
fn archive(entries: Entries<'_>) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, link, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o4777);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn run(from: &str, to: &Path, bytes: &[u8]) -> (Result<(), Error>, Vec<String>) {
    let mut warned = Vec::new();
    let done = unpack(bytes, &Plan::new(from, to), &mut |line| warned.push(line.to_owned()));
    (done, warned)
}

fn content(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_folders_content_and_a_file_go_where_they_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out");
    let bytes = archive(&[
        (EntryType::Directory, "etc/app/", "", ""),
        (EntryType::Regular, "etc/app/a", "", "one"),
        (EntryType::Regular, "etc/app/deep/b", "", "two"),
        (EntryType::Link, "etc/app/c", "etc/app/a", ""),
    ]);
    run("/etc/app", &to, &bytes).0.unwrap();
    assert_eq!(
        [content(&to.join("a")), content(&to.join("deep/b")), content(&to.join("c"))],
        ["one", "two", "one"]
    );
    let bytes = archive(&[(EntryType::Regular, "etc/hosts", "", "h")]);
    run("/etc/hosts", &to.join("new/name"), &bytes).0.unwrap();
    assert_eq!(content(&to.join("new/name")), "h");
    run("/etc/hosts", &to, &bytes).0.unwrap();
    assert_eq!(content(&to.join("hosts")), "h", "into a folder that is there");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(
        fs::metadata(to.join("hosts")).unwrap().permissions().mode() & 0o7111,
        0,
        "modes are not the container's"
    );
}

#[test]
fn nothing_leads_out_of_the_destination() {
    let folder = tempfile::tempdir().unwrap();
    let (to, outside) = (folder.path().join("out"), folder.path().join("outside"));
    let bytes = archive(&[
        (EntryType::Regular, "d/../../outside", "", "evil"),
        (EntryType::Symlink, "d/link", "..", ""),
        (EntryType::Regular, "d/link/outside", "", "evil"),
        (EntryType::Regular, "d/ok", "", "fine"),
        (EntryType::Fifo, "d/pipe", "", ""),
        (EntryType::Link, "d/hard", "d/../../outside", ""),
    ]);
    let (done, warned) = run("d", &to, &bytes);
    done.unwrap();
    assert!(!outside.exists() && content(&to.join("ok")) == "fine");
    assert!(to.join("link").is_dir(), "a folder, as the link was not made");
    assert_eq!(warned.len(), 4, "{warned:?}");
    assert!(warned[0].ends_with("is outside target destination, skipping"), "{warned:?}");
    // A link that is there already is not followed either.
    std::os::unix::fs::symlink(folder.path(), to.join("there")).unwrap();
    for name in ["d/there/outside", "d/there"] {
        let (done, _) = run("d", &to, &archive(&[(EntryType::Regular, name, "", "evil")]));
        assert!(matches!(done.unwrap_err(), Error::Write { .. }), "{name}");
    }
    assert!(!outside.exists());
    for name in ["other/x", "/etc/passwd", "dd/x"] {
        let (done, _) = run("d", &to, &archive(&[(EntryType::Regular, name, "", "evil")]));
        assert!(matches!(done.unwrap_err(), Error::Elsewhere(_)), "{name}");
    }
}

#[test]
fn what_is_endless_or_cut_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_path("f").unwrap();
    header.set_size(1 << 60);
    header.set_cksum();
    let (done, _) = run("f", &folder.path().join("f"), header.as_bytes());
    assert!(matches!(done.unwrap_err(), Error::TooLarge(_)));
    let bytes = archive(&[(EntryType::Regular, "f", "", "content")]);
    let (done, _) = run("f", &folder.path().join("f"), &bytes[..515]);
    assert!(matches!(done.unwrap_err(), Error::Archive(_)));
    assert!(matches!(run("f", folder.path(), &[]).0.unwrap_err(), Error::Empty));
}
