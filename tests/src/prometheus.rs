//! Prometheus' text format, read as strictly as Prometheus itself reads it and a little more: what one
//! target says twice is an error. Owns the reading; never asks anybody. Used by the tiers that scrape a
//! kubelet.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// All that one endpoint has said.
#[derive(Debug, Default)]
pub struct Scrape {
    /// TYPE by family.
    pub types: BTreeMap<String, String>,
    /// Samples by their own names, such as `x_bucket`.
    pub samples: BTreeMap<String, Vec<(Labels, f64)>>,
}

impl Scrape {
    /// Reads it all.
    ///
    /// # Errors
    /// With the first line that is wrong.
    pub fn read(text: &str) -> Result<Self> {
        ensure!(text.is_empty() || text.ends_with('\n'), "the last line has no end");
        let mut scrape = Self::default();
        let (mut family, mut helped, mut seen) = (String::new(), BTreeSet::new(), BTreeSet::new());
        for line in text.lines() {
            scrape.line(line, &mut family, &mut helped, &mut seen).with_context(|| line.to_owned())?;
        }
        scrape.histograms()?;
        Ok(scrape)
    }

    fn line(
        &mut self,
        line: &str,
        family: &mut String,
        helped: &mut BTreeSet<String>,
        seen: &mut BTreeSet<(String, Labels)>,
    ) -> Result<()> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, _) = rest.split_once(' ').context("no text")?;
            ensure!(helped.insert(name.to_owned()), "a second HELP");
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').context("no type")?;
            ensure!(
                matches!(kind, "counter" | "gauge" | "histogram" | "summary" | "untyped"),
                "no such type"
            );
            ensure!(helped.contains(name), "TYPE without HELP before it");
            ensure!(self.types.insert(name.to_owned(), kind.to_owned()).is_none(), "a second TYPE");
            name.clone_into(family);
            return Ok(());
        }
        let (name, labels, rest) = head(line)?;
        let mut words = rest.split(' ');
        let value = words.next().context("no value")?;
        let value: f64 = value.trim_start_matches('+').parse().context("no number")?;
        if let Some(time) = words.next() {
            time.parse::<i64>().context("no time")?;
        }
        ensure!(words.next().is_none(), "something behind the time");
        let of = self.types.get(family.as_str()).context("a sample of no family")?;
        let own = match of.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)),
            "summary" => {
                Some(["_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name))
            }
            _ => Some(name.as_str()),
        };
        ensure!(own == Some(family.as_str()), "a sample among those of {family}");
        ensure!(seen.insert((name.clone(), labels.clone())), "the same series again");
        self.samples.entry(name).or_default().push((labels, value));
        Ok(())
    }

    /// Buckets rise, and the last one is all.
    fn histograms(&self) -> Result<()> {
        for (name, _) in self.types.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut last: BTreeMap<Labels, (f64, f64)> = BTreeMap::new();
            for (labels, count) in self.samples.get(&format!("{name}_bucket")).context(name.clone())? {
                let mut labels = labels.clone();
                let bound = labels.remove("le").with_context(|| format!("{name}: no le"))?;
                let bound: f64 = bound.trim_start_matches('+').parse()?;
                let (below, fewer) = last.insert(labels, (bound, *count)).unwrap_or((f64::MIN, 0.0));
                ensure!(bound > below && *count >= fewer, "{name}: le={bound}");
            }
            for (labels, count) in self.samples.get(&format!("{name}_count")).context(name.clone())? {
                ensure!(last.remove(labels) == Some((f64::INFINITY, *count)), "{name}: {labels:?}");
            }
            ensure!(last.is_empty(), "{name}: buckets without a count");
        }
        Ok(())
    }

    /// The one value of a series that has these labels, whatever else it has.
    ///
    /// # Errors
    /// When there is none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let has =
            |of: &Labels| labels.iter().all(|(label, text)| of.get(*label).is_some_and(|own| own == text));
        let found = self.samples.get(name).and_then(|all| all.iter().find(|(of, _)| has(of)));
        found.map(|(_, value)| *value).with_context(|| format!("no {name}{labels:?}"))
    }
}

/// Name, labels, what follows them.
fn head(line: &str) -> Result<(String, Labels, &str)> {
    let end = line.find(['{', ' ']).context("no value")?;
    let (name, rest) = line.split_at(end);
    ensure!(is_name(name), "no name");
    let Some(mut rest) = rest.strip_prefix('{') else {
        return Ok((name.to_owned(), Labels::new(), rest.trim_start_matches(' ')));
    };
    let mut labels = Labels::new();
    loop {
        let (label, quoted) = rest.split_once("=\"").context("no label")?;
        ensure!(is_name(label) && !label.contains(':'), "no label's name");
        let (text, behind) = unquote(quoted)?;
        ensure!(labels.insert(label.to_owned(), text).is_none(), "a label twice");
        rest = match behind.strip_prefix(',') {
            Some(more) => more,
            None => {
                let rest = behind.strip_prefix("} ").context("no end of labels")?;
                return Ok((name.to_owned(), labels, rest));
            }
        };
    }
}

fn is_name(text: &str) -> bool {
    let fine = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':');
    !text.is_empty() && text.chars().all(fine) && !text.starts_with(|first: char| first.is_ascii_digit())
}

/// To the closing quote, and what is behind it.
fn unquote(text: &str) -> Result<(String, &str)> {
    let (mut out, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((out, text.get(at + 1..).unwrap_or_default())),
            '\\' => match letters.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, letter @ ('"' | '\\'))) => out.push(letter),
                other => bail!("\\{other:?}"),
            },
            letter => out.push(letter),
        }
    }
    bail!("a quote that does not close")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prometheus_takes() {
        let text = "# HELP a_total A \"b\"\n# TYPE a_total counter\na_total{x=\"1\\\"\\n,\",y=\"\"} 2 1700000000000\na_total 3\n\
                    # HELP h H\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 9\nh_count 2\n\
                    # HELP g G\n# TYPE g gauge\ng +Inf\n";
        let scrape = Scrape::read(text).unwrap();
        assert_eq!(scrape.value("a_total", &[("x", "1\"\n,")]).unwrap(), 2.0);
        assert_eq!(scrape.value("g", &[]).unwrap(), f64::INFINITY);
        assert!(scrape.value("a_total", &[("x", "2")]).is_err());
    }

    #[test]
    fn what_it_does_not_take_or_nobody_should_say() {
        let head = "# HELP a A\n# TYPE a gauge\n";
        for (bad, why) in [
            ("a 1", "the last line has no end"),
            ("a 1\na 2\n", "the same series again"),
            ("a{x=\"1\"} 1\na{x=\"1\"} 1\n", "the same series again"),
            ("# HELP a A\n", "a second HELP"),
            ("# TYPE a gauge\n", "a second TYPE"),
            ("b 1\n", "a sample among those of a"),
            ("a x\n", "no number"),
            ("a 1 x\n", "no time"),
            ("a{x=1} 1\n", "no label"),
            ("a{x=\"1} 1\n", "a quote that does not close"),
            ("a{1x=\"1\"} 1\n", "no label's name"),
            ("# TYPE b gauge\nb 1\n", "TYPE without HELP before it"),
            (
                "# HELP h H\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_count 1\n",
                "h: le=inf",
            ),
            ("# HELP h H\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_count 2\n", "h: {}"),
        ] {
            let error = Scrape::read(&format!("{head}{bad}")).unwrap_err();
            assert!(format!("{error:#}").contains(why), "{bad}: {error:#}");
        }
    }
}
