//! Files whose head says "Pure" decide and do nothing else: everything they know comes in as an argument. Owns what such a
//! file may not name.

/// What a pure file may not name.
const IMPURE: [&str; 11] = [
    "tokio",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::process",
    "env::var",
    "env::args",
    "env::current",
    "SystemTime::now",
    "Instant::now",
    "rustix",
];
/// As many say it at least: a word that is dropped from a head would else switch its check off.
const AT_LEAST: usize = 200;

/// "Pure." or "Pure: …" or "Pure; …" in the head, but not "Pure but for …".
fn is_pure(text: &str) -> bool {
    let head = text.lines().take_while(|line| line.starts_with("//!"));
    head.map(|line| line.trim_start_matches("//!")).any(|line| {
        line.match_indices("Pure").any(|(at, word)| line[at + word.len()..].starts_with(['.', ':', ';']))
    })
}

#[test]
fn pure_files_know_nothing_of_the_world() {
    let sources = super::sources();
    let pure: Vec<_> = sources.iter().filter(|(_, text)| is_pure(text)).collect();
    assert!(pure.len() >= AT_LEAST, "only {} files say that they are pure", pure.len());
    let mut offenders = Vec::new();
    for (name, text) in pure {
        for (number, line) in super::code(super::without_tests(text)) {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                offenders.push(format!("{name}:{number} names {word}"));
            }
        }
    }
    super::assert_none("a plan takes time, ids and facts as arguments", &offenders);
}

#[test]
fn heads_say_it_in_so_many_words() {
    assert!(is_pure("//! Decides. Pure: time is an argument.\n"));
    assert!(is_pure("//! Decides.\n//! Pure.\n"));
    assert!(!is_pure("//! Reads. Pure but for one file.\nPure.\n"));
}
