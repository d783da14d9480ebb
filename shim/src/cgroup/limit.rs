//! Writing limits, in an order that the kernel accepts whatever stands there now. Owns the order;
//! `resources` owns the values. Called through `Cgroup`.

use std::fs;
use std::io;

use gantry_base::error::chain;

use super::resources::{FileValue, HUGETLB, MEMORY_V1, MEMSW_V1, PERIOD_V1, QUOTA_V1, SWAP_V2};
use super::{Cgroup, Error, Resources, write};

/// An absent limit of v1, rounded to pages, and -1 both mean more than any other.
const ENDLESS: i64 = 1 << 62;

impl Cgroup {
    /// Sets limits.
    ///
    /// # Errors
    /// When the kernel refuses a value, with file and value.
    pub fn apply(&self, resources: &Resources) -> Result<(), Error> {
        self.put(self.files(resources)?)
    }

    fn files(&self, resources: &Resources) -> Result<Vec<FileValue>, Error> {
        let mut files = resources.files(self.layout.is_unified())?;
        files.retain(|(controller, file, value)| !may_lack(file, value) || self.has(controller, file));
        Ok(files)
    }

    /// Writes in an order that the kernel accepts.
    fn put(&self, mut files: Vec<FileValue>) -> Result<(), Error> {
        self.put_memory_in_order(&mut files);
        let mut rest = files.iter().peekable();
        while let Some(file) = rest.next() {
            let written = self.set(file);
            match rest.next_if(|next| file.1 == PERIOD_V1 && next.1 == QUOTA_V1) {
                // The old quota does not fit the new period: the new one may.
                Some(quota) if is_invalid(&written) => {
                    self.set(quota)?;
                    self.set(file)?;
                }
                Some(quota) => {
                    written?;
                    self.set(quota)?;
                }
                None => written?,
            }
        }
        Ok(())
    }

    /// Sets limits of a cgroup that has members. A memory limit below what they use and can't
    /// give back at will is refused before anything is written: on v2 the kernel would kill them. Page
    /// cache goes when the limit is set. When the kernel refuses a value, every file gets back what it
    /// held; one that can't be read has nothing to get back.
    ///
    /// # Errors
    /// As [`Cgroup::apply`], or [`Error::BelowUsage`].
    pub fn update(&self, resources: &Resources) -> Result<(), Error> {
        if resources.memory_limit > 0
            && let Some(usage) = self.working_set()?
            && u64::try_from(resources.memory_limit).is_ok_and(|limit| limit < usage)
        {
            return Err(Error::BelowUsage { path: self.path(), limit: resources.memory_limit, usage });
        }
        let files = self.files(resources)?;
        let held: Vec<FileValue> = files.iter().filter_map(|file| self.read_current(file)).collect();
        self.put(files).inspect_err(|_| {
            if let Err(error) = self.put(held) {
                tracing::warn!(cgroup = self.path, "setting the old limits again: {}", chain(&error));
            }
        })
    }

    /// The file with what it says now.
    fn read_current(&self, (controller, file, _): &FileValue) -> Option<FileValue> {
        let folder = self.layout.folder_of(controller, &self.path)?;
        let value = fs::read_to_string(folder.join(file)).ok()?;
        Some((controller, file.clone(), value.trim_end().to_owned()))
    }

    fn has(&self, controller: &str, file: &str) -> bool {
        self.layout.folder_of(controller, &self.path).is_some_and(|folder| folder.join(file).exists())
    }

    /// v1 keeps memory ≤ memory+swap at every moment: the sum goes first when it grows.
    fn put_memory_in_order(&self, files: &mut [FileValue]) {
        let place = |name: &str| files.iter().position(|(_, file, _)| file == name);
        let (Some(memory), Some(both)) = (place(MEMORY_V1), place(MEMSW_V1)) else { return };
        let endless = |limit: i64| if limit < 0 { ENDLESS } else { limit.min(ENDLESS) };
        let current = self
            .layout
            .folder_of("memory", &self.path)
            .and_then(|folder| fs::read_to_string(folder.join(MEMSW_V1)).ok())
            .and_then(|text| text.trim().parse::<i64>().ok())
            .unwrap_or(ENDLESS);
        let wanted = files.get(both).and_then(|(_, _, value)| value.parse::<i64>().ok()).unwrap_or(0);
        if endless(wanted) > endless(current) {
            files.swap(memory, both);
        }
    }

    fn set(&self, (controller, file, value): &FileValue) -> Result<(), Error> {
        match self.layout.folder_of(controller, &self.path) {
            Some(folder) => write(folder.join(file), value),
            None => Err(Error::Write {
                path: file.into(),
                value: value.clone(),
                source: io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("this node has no {controller} controller"),
                ),
            }),
        }
    }
}

/// What a node lacks without being worse for it. One without swap accounting can't limit swap, and
/// containerd lets it be. No huge pages of a size that is not counted is what there is; reservations are
/// counted since Linux 5.7, and limited where they are, as runc does: mmap(2) fails then, instead of
/// SIGBUS at the first touch.
fn may_lack(file: &str, value: &str) -> bool {
    let huge = file.starts_with(HUGETLB);
    matches!(file, MEMSW_V1 | SWAP_V2) || (huge && (value == "0" || file.contains(".rsvd.")))
}

fn is_invalid(written: &Result<(), Error>) -> bool {
    matches!(written, Err(Error::Write { source, .. }) if source.raw_os_error() == Some(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Layout;

    /// A folder in the place of a cgroup of v2, with these files.
    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroup) {
        let folder = tempfile::tempdir().unwrap();
        for (file, value) in files {
            fs::write(folder.path().join(file), value).unwrap();
        }
        let layout = Layout::Unified { mount: folder.path().to_owned() };
        (folder, Cgroup::new(&layout, "/").unwrap())
    }

    fn huge(limits: &[(&str, u64)]) -> Resources {
        let hugepages = limits.iter().map(|(size, limit)| ((*size).to_owned(), *limit)).collect();
        Resources { hugepages, ..Resources::default() }
    }

    #[test]
    fn huge_pages_are_limited_to_none_too_and_only_a_size_without_a_file_is_passed_over() {
        let (folder, cgroup) =
            fake(&[("hugetlb.2MB.max", ""), ("hugetlb.2MB.rsvd.max", ""), ("hugetlb.1GB.max", "")]);
        cgroup.apply(&huge(&[("2MB", 0), ("1GB", 1 << 30), ("64KB", 0)])).unwrap();
        for (file, value) in
            [("hugetlb.2MB.max", "0"), ("hugetlb.2MB.rsvd.max", "0"), ("hugetlb.1GB.max", "1073741824")]
        {
            assert_eq!(fs::read_to_string(folder.path().join(file)).unwrap(), value, "{file}");
        }
        assert!(
            matches!(cgroup.apply(&huge(&[("64KB", 1)])), Err(Error::Write { .. })),
            "a limit that is none"
        );
    }

    #[test]
    fn an_update_that_is_refused_gives_every_file_back_what_it_held() {
        let (folder, cgroup) = fake(&[("memory.max", "555"), ("memory.swap.max", "7"), ("cpu.weight", "99")]);
        // Nobody writes to a folder.
        fs::create_dir(folder.path().join("cpuset.cpus")).unwrap();
        let wanted =
            Resources { memory_limit: 777, cpu_shares: 1, cpuset_cpus: "0".into(), ..Resources::default() };
        assert!(cgroup.update(&wanted).is_err());
        for (file, value) in [("memory.max", "555"), ("memory.swap.max", "7"), ("cpu.weight", "99")] {
            assert_eq!(fs::read_to_string(folder.path().join(file)).unwrap(), value, "{file}");
        }
    }
}
