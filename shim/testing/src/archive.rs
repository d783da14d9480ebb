//! Archives for tests, hostile ones too. Owns raw header blocks: no library writes what these tests need.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A tar stream under construction.
#[derive(Debug, Clone, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    owner: (u64, u64),
    mtime: u64,
}

impl Archive {
    /// Nothing yet; entries get the owner 0:0 and a time of 2001.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: Vec::new(), owner: (0, 0), mtime: 1_000_000_000 }
    }

    /// Owner of the entries that follow.
    #[must_use]
    pub fn owner(mut self, uid: u64, gid: u64) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// A file of mode 0644.
    #[must_use]
    pub fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(b'0', path, "", 0o644, (0, 0), data)
    }

    /// A file of that mode.
    #[must_use]
    pub fn mode_file(self, path: &str, mode: u32, data: &[u8]) -> Self {
        self.entry(b'0', path, "", mode, (0, 0), data)
    }

    /// A folder.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(b'5', path, "", mode, (0, 0), b"")
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path, target, 0o777, (0, 0), b"")
    }

    /// A hard link.
    #[must_use]
    pub fn hardlink(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path, target, 0o644, (0, 0), b"")
    }

    /// A character device.
    #[must_use]
    pub fn device(self, path: &str, major: u32, minor: u32) -> Self {
        self.entry(b'3', path, "", 0o666, (major, minor), b"")
    }

    /// An extended header for the entry that follows.
    #[must_use]
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let body = key.len() + value.len() + 3;
            let length = (1..20).map(|digits| body + digits).find(|n| n.to_string().len() + body == *n);
            write!(data, "{} {key}=", length.unwrap()).unwrap();
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.entry(b'x', "pax", "", 0o644, (0, 0), &data)
    }

    /// Any entry; name and link stand in the header as they are.
    #[must_use]
    pub fn entry(
        mut self,
        kind: u8,
        path: &str,
        link: &str,
        mode: u32,
        device: (u32, u32),
        data: &[u8],
    ) -> Self {
        let mut header = tar::Header::new_ustar();
        header.set_mode(mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(self.mtime);
        header.set_size(data.len() as u64);
        header.set_device_major(device.0).unwrap();
        header.set_device_minor(device.1).unwrap();
        let block = header.as_mut_bytes();
        block[..path.len()].copy_from_slice(path.as_bytes());
        block[156] = kind;
        block[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// The stream with its end mark.
    #[must_use]
    pub fn tar(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }
}

/// Packed fast.
#[must_use]
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
