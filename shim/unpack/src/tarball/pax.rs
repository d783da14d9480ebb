//! PAX extended headers, `LENGTH KEY=VALUE\n` each (pax(1p), "pax Extended Header"). Pure. Called
//! by `tarball` only.

use super::TarError;

/// What extension records say over the header that follows them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Overrides {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) xattrs: Vec<(String, Vec<u8>)>,
    pub(super) sparse: bool,
}

impl Overrides {
    /// Adds the records of one extended header.
    ///
    /// # Errors
    /// [`TarError::Extension`]: a record of the wrong form, a number that is none.
    pub(super) fn apply_pax(&mut self, mut data: &[u8], offset: u64) -> Result<(), TarError> {
        let bad = |detail| TarError::Extension { offset, detail };
        while !data.is_empty() {
            let (key, value, rest) = record(data).ok_or_else(|| bad("not LENGTH KEY=VALUE"))?;
            data = rest;
            let number = || {
                std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .ok_or_else(|| bad("no number"))
            };
            match key {
                "path" => self.path = Some(name(value).ok_or_else(|| bad("path holds a NUL"))?),
                "linkpath" => self.link = Some(name(value).ok_or_else(|| bad("linkpath holds a NUL"))?),
                "size" => self.size = Some(number()?),
                "uid" => self.uid = Some(number()?),
                "gid" => self.gid = Some(number()?),
                "mtime" => self.mtime = Some(time(value).ok_or_else(|| bad("mtime is no time"))?),
                _ if key.starts_with("GNU.sparse.") => self.sparse = true,
                _ => {
                    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                        self.xattrs.push((name.to_owned(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// First record and the rest. The length counts itself, the space and the line end.
fn record(data: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let space = data.iter().take(12).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
    let body = data.get(space + 1..length)?;
    let body = body.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    let key = std::str::from_utf8(&body[..equals]).ok()?;
    Some((key, &body[equals + 1..], &data[length..]))
}

fn name(value: &[u8]) -> Option<Vec<u8>> {
    (!value.contains(&0)).then(|| value.to_vec())
}

/// `seconds[.fraction]`, maybe negative.
fn time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    // -1.25 s is 0.75 s after -2 s.
    if whole.starts_with('-') && nanos > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos));
    }
    Some((seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(data: &[u8]) -> Result<Overrides, TarError> {
        let mut overrides = Overrides::default();
        overrides.apply_pax(data, 0).map(|()| overrides)
    }

    #[test]
    fn binary_values_and_line_ends_survive() {
        let own = apply(b"12 path=a/b\n34 SCHILY.xattr.user.a=\x01\n\x00=\n12345\n").unwrap();
        assert_eq!(own.path.unwrap(), b"a/b");
        assert_eq!(own.xattrs, [("user.a".to_owned(), b"\x01\n\x00=\n12345".to_vec())]);
    }

    #[test]
    fn numbers_and_times_are_read() {
        let own = apply(b"11 uid=100\n20 mtime=1.25000000\n15 size=999999\n").unwrap();
        assert_eq!((own.uid, own.mtime, own.size), (Some(100), Some((1, 250_000_000)), Some(999_999)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"-0.5"), Some((-1, 500_000_000)));
        assert_eq!(time(b"x"), None);
        assert_eq!(time(b"1.-5"), None);
    }

    #[test]
    fn broken_records_are_refused() {
        for data in [
            &b"99 path=a\n"[..],
            b"9 path=ab\n",
            b"x path=a\n",
            b"10 pathab\n\n",
            b"3 \n",
            b"0 a=b\n",
            b"99999999999999999999 a=b\n",
            b"10 uid=xx\n",
            b"10 path=\0\0\n",
            b"9 size=-\n",
        ] {
            assert!(apply(data).is_err(), "{data:?}");
        }
    }
}
