//! Numbered records with checksums, written to a volume by a shell and synced one by one, and what was acknowledged of
//! them, which is kept elsewhere. Owns the writer's script and the check; starts nothing. Called by the tier disruption.
//!
//! ```text
//! VOLUME/records    N NAME SHA256      each written and synced, then
//! ACKS/NAME         N SHA256           acknowledged
//! ```

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::digest;

/// The file in the volume.
pub const RECORDS: &str = "records";

/// A shell's script: goes on where the volume ends, until it is asked to end. Where a write fails, it fails.
#[must_use]
pub fn script(name: &str, volume: &str, acks: &str) -> String {
    script_with(name, volume, &format!(r#"echo "$n $sum" >>{acks}/{name}"#))
}

/// The same; `acknowledge` is what a shell does with `$n` and `$sum` of a record that is synced.
#[must_use]
pub fn script_with(name: &str, volume: &str, acknowledge: &str) -> String {
    format!(
        r#"trap 'exit 0' TERM
file={volume}/{RECORDS}
n=0
if [ -e $file ]; then n=$(tail -n 1 $file); n=${{n%% *}}; fi
while :; do
n=$((n + 1))
sum=$(echo "$n {name}" | sha256sum)
sum=${{sum%% *}}
echo "$n {name} $sum" | dd of=$file oflag=append conv=notrunc,fsync 2>/tmp/said || {{ cat /tmp/said; exit 3; }}
{acknowledge}
sleep 0.05
done"#
    )
}

fn sum(number: u64, name: &str) -> String {
    let line = format!("{number} {name}\n");
    digest::digest(&digest::SHA256, line.as_bytes())
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// That the records of a writer have every number from 1 on, once and in order, each with its checksum, and that every
/// acknowledged one is there. The acknowledgements must have been read first. Returns how many were acknowledged.
///
/// # Errors
/// With the first that is wrong.
pub fn check(name: &str, acks: &str, records: &str) -> Result<u64> {
    let mut sums = BTreeMap::new();
    let mut last = 0;
    for line in whole_lines(records) {
        let mut words = line.splitn(3, ' ');
        let number = words.next().and_then(|word| word.parse::<u64>().ok());
        let number = number.with_context(|| format!("{name}: a record {line:?} after {last}"))?;
        ensure!(number == last + 1, "{name}: record {number} follows {last}");
        let (writer, given) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        ensure!(
            writer == name && given == sum(number, name),
            "{name}: record {number} is another's, or broken: {line:?}"
        );
        sums.insert(number, given);
        last = number;
    }
    let mut acknowledged = 0;
    for line in whole_lines(acks) {
        let (number, given) = line.split_once(' ').with_context(|| format!("{name}: an ack {line:?}"))?;
        let number: u64 = number.parse().with_context(|| format!("{name}: an ack {line:?}"))?;
        match sums.get(&number) {
            Some(kept) if *kept == given => acknowledged += 1,
            Some(kept) => bail!("{name}: record {number} has {kept}, {given} was acknowledged"),
            None => bail!("{name}: record {number} was acknowledged and is not there; {last} records are"),
        }
    }
    Ok(acknowledged)
}

/// A line without its end is being written: nobody has acknowledged it.
fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal};

    use super::*;

    fn records(numbers: &[u64]) -> String {
        numbers.iter().map(|number| format!("{number} a {}\n", sum(*number, "a"))).collect()
    }

    fn acks(numbers: &[u64]) -> String {
        numbers.iter().map(|number| format!("{number} {}\n", sum(*number, "a"))).collect()
    }

    #[test]
    fn a_record_that_is_lost_double_out_of_order_or_anothers_is_told() {
        assert_eq!(check("a", &acks(&[1, 2]), &records(&[1, 2, 3])).unwrap(), 2);
        let said = |acks: &str, records: &str| check("a", acks, records).unwrap_err().to_string();
        assert!(said(&acks(&[1, 2]), &records(&[1])).contains("2 was acknowledged and is not there"));
        assert!(said("", &records(&[1, 1])).contains("record 1 follows 1"));
        assert!(said("", &records(&[1, 3])).contains("record 3 follows 1"));
        assert!(said("", &records(&[2])).contains("record 2 follows 0"));
        assert!(said("", "1 b x\n").contains("another's, or broken"));
        assert!(said("", "word\n").contains("a record \"word\""));
        let other = format!("1 {}\n", sum(2, "a"));
        assert!(said(&other, &records(&[1])).contains("was acknowledged"));
    }

    #[test]
    fn what_is_being_written_is_not_looked_at() {
        let torn = records(&[1]) + "2 a";
        assert_eq!(check("a", &(acks(&[1]) + "2"), &torn).unwrap(), 1);
    }

    #[test]
    fn the_script_goes_on_where_its_volume_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let acks = folder.path().join("a");
        for round in 1..=2_u64 {
            let mut shell = Command::new("sh")
                .args(["-c", &script("a", &path, &path)])
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            crate::poll::poll("two records more", std::time::Duration::from_secs(20), || {
                let lines = std::fs::File::open(&acks).map_or(0, |file| BufReader::new(file).lines().count());
                if lines as u64 >= 2 * round { Ok(()) } else { Err(format!("{lines} lines")) }
            })
            .unwrap();
            // It ends once its record is written: here no container ends the writer with it.
            let pid = Pid::from_raw(i32::try_from(shell.id()).unwrap()).unwrap();
            rustix::process::kill_process(pid, Signal::TERM).unwrap();
            assert!(shell.wait().unwrap().success());
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let acknowledged = read("a");
        assert!(check("a", &acknowledged, &read(RECORDS)).unwrap() >= 4);
    }
}
