//! The query of `/logs/?query=…` (kubectl's node log query). Pure: owns what may be asked, upstream's words for what may
//! not, and the arguments of journalctl; never runs it. Called by [`super`].

use jiff::Timestamp;

use crate::query;

const MOST_LINES: i64 = 100_000;
const LONGEST_SERVICE: usize = 256;
const MOST_SERVICES: usize = 4;

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LogQuery {
    /// Units, or names of files without a slash.
    pub(super) services: Vec<String>,
    /// Names of files with one.
    pub(super) files: Vec<String>,
    pub(super) options: Options,
}

/// What narrows it down.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Options {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    lines: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{field}: Invalid value: {value}: {why}")
}

fn list(values: &[String]) -> String {
    // Of texts: it cannot fail.
    serde_json::to_string(values).unwrap_or_default()
}

/// Reads the pairs of a URL's query; none when it asks for nothing of this kind.
///
/// # Errors
/// All that cannot be read.
pub(super) fn read(pairs: &[(String, String)]) -> Result<Option<LogQuery>, Vec<String>> {
    let (mut found, mut wrong) = (LogQuery::default(), Vec::new());
    let asked: Vec<String> = query::all(pairs, "query").map(str::to_owned).collect();
    for one in &asked {
        if one.contains(['/', '\\']) {
            found.files.push(one.clone());
        } else if !one.trim().is_empty() {
            found.services.push(one.clone());
        }
    }
    if !asked.is_empty() && found.files.is_empty() && found.services.is_empty() {
        wrong.push(invalid("query", &list(&asked), "query cannot be empty"));
    }
    let given = |key: &str| query::first(pairs, key).filter(|value| !value.is_empty()).map(str::to_owned);
    let mut time = |key: &str| {
        let value = given(key)?;
        value.parse().map_err(|_| wrong.push(invalid(key, &go_quoted(&value), "invalid time format"))).ok()
    };
    (found.options.since, found.options.until) = (time("sinceTime"), time("untilTime"));
    let mut number = |key: &str| {
        let value = given(key)?;
        let read: Result<i64, String> = value.parse().map_err(|_| go_number(&value));
        read.map_err(|why| wrong.push(invalid(key, &go_quoted(&value), &why))).ok()
    };
    (found.options.boot, found.options.lines) = (number("boot"), number("tailLines"));
    found.options.pattern = given("pattern").unwrap_or_default();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(Some(found).filter(|found| *found != LogQuery::default()))
}

fn go_quoted(text: &str) -> String {
    format!("{text:?}")
}

/// As strconv.Atoi says it.
fn go_number(text: &str) -> String {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let what = if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        "value out of range"
    } else {
        "invalid syntax"
    };
    format!("strconv.Atoi: parsing {}: {what}", go_quoted(text))
}

/// Several are told in brackets.
pub(super) fn together(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

impl LogQuery {
    /// What of it may not be asked. Whether a file is there is not looked at.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut wrong = self.problems_of_services();
        let (files, services) = (&self.files, &self.services);
        match (files.len(), services.len()) {
            (0, 0) => wrong.push("query: Required value: cannot be empty with options".to_owned()),
            (1.., 1..) => {
                let both = format!("[{}], [{}]", files.join(" "), services.join(" "));
                wrong.push(invalid("query", &go_quoted(&both), "cannot specify a file and service"));
            }
            (2.., _) => wrong.push(invalid("query", &list(files), "cannot specify more than one file")),
            (1, 0) if self.options != Options::default() => {
                wrong.push(invalid("query", &list(files), "cannot specify file with options"));
            }
            _ => {}
        }
        let Options { since, until, lines, boot, .. } = &self.options;
        if let (Some(since), Some(until)) = (since, until)
            && since > until
        {
            wrong.push(invalid("untilTime", &until.to_string(), "must be after `sinceTime`"));
        }
        if let Some(boot) = boot.filter(|boot| *boot > 0) {
            wrong.push(invalid("boot", &boot.to_string(), "must be less than 1"));
        }
        if let Some(lines) = lines.filter(|lines| !(0..=MOST_LINES).contains(lines)) {
            let why = format!("must be between 0 and {MOST_LINES}, inclusive");
            wrong.push(invalid("tailLines", &lines.to_string(), &why));
        }
        wrong
    }

    fn problems_of_services(&self) -> Vec<String> {
        let safe =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'@' | b'.' | b':');
        let wrong = |service: &String| {
            let why = if service.len() > LONGEST_SERVICE {
                "length must be less than 100"
            } else if !service.bytes().all(safe) {
                "input contains unsupported characters"
            } else {
                return None;
            };
            Some(invalid("query", &go_quoted(service), why))
        };
        let mut all: Vec<String> = self.services.iter().filter_map(wrong).collect();
        if self.services.len() > MOST_SERVICES {
            let count = self.services.len();
            all.push(format!("query: Too many: {count}: must have at most {MOST_SERVICES} items"));
        }
        all
    }

    /// For journalctl, to show these units.
    pub(super) fn arguments(&self, units: &[String]) -> Vec<String> {
        let Options { since, until, lines, boot, pattern } = &self.options;
        let mut args: Vec<String> =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        // The zone is said: else journalctl takes the node's own.
        let time = |at: &Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        args.extend(since.iter().map(|at| format!("--since={}", time(at))));
        args.extend(until.iter().map(|at| format!("--until={}", time(at))));
        if let Some(lines) = lines {
            args.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        args.extend(units.iter().map(|unit| format!("--unit={unit}")));
        if !pattern.is_empty() {
            args.extend([format!("--grep={pattern}"), "--case-sensitive=false".to_owned()]);
        }
        if let Some(boot) = boot {
            args.extend(["--boot".to_owned(), boot.to_string()]);
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<LogQuery>, String> {
        read(&query::pairs(text)).map_err(|wrong| together(&wrong))
    }

    fn judged(text: &str) -> String {
        together(&of(text).unwrap().unwrap().problems())
    }

    #[test]
    fn services_and_files_are_told_apart_and_options_become_arguments() {
        assert_eq!(of("").unwrap(), None);
        assert_eq!(of("x=y").unwrap(), None);
        let found = of("query=kubelet&query=/foo.log&query=").unwrap().unwrap();
        assert_eq!((found.services, found.files), (vec!["kubelet".to_owned()], vec!["/foo.log".to_owned()]));
        let text = "query=kubelet&query=sshd&sinceTime=2026-01-02T03:04:05%2B01:00&untilTime=2026-01-03T00:00:00Z&\
                    tailLines=7&boot=-1&pattern=a+b";
        let query = of(text).unwrap().unwrap();
        assert_eq!(query.problems(), Vec::<String>::new());
        assert_eq!(
            query.arguments(&query.services),
            [
                "--utc",
                "--no-pager",
                "--output=short-precise",
                "--since=2026-01-02 02:04:05 UTC",
                "--until=2026-01-03 00:00:00 UTC",
                "--pager-end",
                "--lines=7",
                "--unit=kubelet",
                "--unit=sshd",
                "--grep=a b",
                "--case-sensitive=false",
                "--boot",
                "-1",
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_is_told_in_upstreams_words() {
        for (text, error) in [
            ("query=", r#"query: Invalid value: [""]: query cannot be empty"#),
            ("query=++", r#"query: Invalid value: ["  "]: query cannot be empty"#),
            ("query=a&sinceTime=now", r#"sinceTime: Invalid value: "now": invalid time format"#),
            ("query=a&boot=x", r#"boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax"#),
            (
                "query=a&tailLines=99999999999999999999",
                r#"tailLines: Invalid value: "99999999999999999999": strconv.Atoi: parsing "99999999999999999999": value out of range"#,
            ),
            (
                "query=a&untilTime=x&boot=y",
                r#"[untilTime: Invalid value: "x": invalid time format, boot: Invalid value: "y": strconv.Atoi: parsing "y": invalid syntax]"#,
            ),
        ] {
            assert_eq!(of(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn what_may_not_be_asked_is_told_in_upstreams_words() {
        let long = "a".repeat(257);
        for (text, error) in [
            ("tailLines=1", "query: Required value: cannot be empty with options".to_owned()),
            ("query=a&query=/b", "query: Invalid value: \"[/b], [a]\": cannot specify a file and service".to_owned()),
            ("query=/a&query=/b", "query: Invalid value: [\"/a\",\"/b\"]: cannot specify more than one file".to_owned()),
            ("query=/a&boot=0", "query: Invalid value: [\"/a\"]: cannot specify file with options".to_owned()),
            ("query=a%3Bb", "query: Invalid value: \"a;b\": input contains unsupported characters".to_owned()),
            ("query=$(x)", "query: Invalid value: \"$(x)\": input contains unsupported characters".to_owned()),
            (
                "query=a&query=b&query=c&query=d&query=e",
                "query: Too many: 5: must have at most 4 items".to_owned(),
            ),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                "untilTime: Invalid value: 2026-01-01T00:00:00Z: must be after `sinceTime`".to_owned(),
            ),
            ("query=a&boot=1", "boot: Invalid value: 1: must be less than 1".to_owned()),
            (
                "query=a&tailLines=100001",
                "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive".to_owned(),
            ),
            (
                "query=a&tailLines=-1&boot=2",
                "[boot: Invalid value: 2: must be less than 1, tailLines: Invalid value: -1: must be between 0 and 100000, inclusive]"
                    .to_owned(),
            ),
            (
                &format!("query={long}"),
                format!("query: Invalid value: \"{long}\": length must be less than 100"),
            ),
        ] {
            assert_eq!(judged(text), error, "{text}");
        }
        assert_eq!(judged("query=getty@tty1&tailLines=100000&boot=0"), "[]");
    }
}
