//! Counters, gauges and histograms, each with all its series. Owns the numbers; never says what
//! they mean (that is [`super::Metrics`]). A lock is held for one addition only.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::text::{Kind, Text, number};

/// What a family is called and how its series are told apart.
#[derive(Debug)]
struct Head<const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
}

impl<const N: usize> Head<N> {
    fn pairs<'a>(&'a self, values: &'a [String; N]) -> Vec<(&'a str, &'a str)> {
        self.labels.iter().zip(values).map(|(label, value)| (*label, value.as_str())).collect()
    }
}

/// By label values.
type Series<T, const N: usize> = Mutex<BTreeMap<[String; N], T>>;

fn open<T, const N: usize>(series: &Series<T, N>) -> MutexGuard<'_, BTreeMap<[String; N], T>> {
    // Nothing in here panics halfway: what is there is whole.
    series.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name, a type, labels.
#[cfg(test)]
pub(super) type About = (&'static str, Kind, Vec<&'static str>);

/// A family that has its place in [`super::Metrics`].
pub(super) trait Family: Sized {
    /// Label names, of the right number.
    type Labels;
    /// Without series that have labels; one without labels is there at once, at 0.
    fn make(name: &'static str, help: &'static str, labels: Self::Labels) -> Self;
    /// What it is.
    #[cfg(test)]
    fn about(&self) -> About;
    /// Nothing is written for one without series, as upstream.
    fn write(&self, text: &mut Text);
}

macro_rules! number_family {
    ($(#[$doc:meta])* $type:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $type<const N: usize = 0> {
            head: Head<N>,
            series: Series<f64, N>,
        }

        impl<const N: usize> $type<N> {
            /// One more.
            pub fn inc(&self, labels: [&str; N]) {
                self.add(labels, 1.0);
            }

            /// So many more.
            pub fn add(&self, labels: [&str; N], more: f64) {
                *open(&self.series).entry(labels.map(str::to_owned)).or_insert(0.0) += more;
            }

            /// The value of one series.
            #[must_use]
            pub fn get(&self, labels: [&str; N]) -> Option<f64> {
                open(&self.series).get(&labels.map(str::to_owned)).copied()
            }

            /// Series of what is gone.
            pub fn forget(&self, gone: impl Fn(&[String; N]) -> bool) {
                open(&self.series).retain(|labels, _| !gone(labels));
            }
        }

        impl<const N: usize> Family for $type<N> {
            type Labels = [&'static str; N];

            fn make(name: &'static str, help: &'static str, labels: Self::Labels) -> Self {
                let family = Self { head: Head { name, help, labels }, series: Series::default() };
                if N == 0 {
                    family.add([""; N], 0.0);
                }
                family
            }

            #[cfg(test)]
            fn about(&self) -> About {
                (self.head.name, $kind, self.head.labels.to_vec())
            }

            fn write(&self, text: &mut Text) {
                let series = open(&self.series);
                if !series.is_empty() {
                    text.family(self.head.name, self.head.help, $kind);
                }
                for (labels, value) in series.iter() {
                    text.sample(self.head.name, &self.head.pairs(labels), *value);
                }
            }
        }
    };
}

number_family!(
    /// Only rises.
    Counter,
    Kind::Counter
);
number_family!(
    /// Rises and falls.
    Gauge,
    Kind::Gauge
);

impl<const N: usize> Gauge<N> {
    /// So many now.
    pub fn set(&self, labels: [&str; N], value: f64) {
        open(&self.series).insert(labels.map(str::to_owned), value);
    }

    /// These series and no others, from one look at the whole.
    pub fn replace(&self, values: impl IntoIterator<Item = ([String; N], f64)>) {
        *open(&self.series) = values.into_iter().collect();
    }
}

#[derive(Debug)]
struct Heap {
    /// One for each bound, not cumulative; what is beyond the last is only in `count`.
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

/// How long things take.
#[derive(Debug)]
pub struct Histogram<const N: usize = 0> {
    head: Head<N>,
    bounds: Vec<f64>,
    series: Series<Heap, N>,
}

impl<const N: usize> Histogram<N> {
    /// One more that took so long.
    pub fn observe(&self, labels: [&str; N], value: f64) {
        let mut series = open(&self.series);
        let heap = series.entry(labels.map(str::to_owned)).or_insert_with(|| empty(&self.bounds));
        let fits = self.bounds.iter().zip(&mut heap.buckets).find(|(bound, _)| value <= **bound);
        if let Some((_, bucket)) = fits {
            *bucket += 1;
        }
        heap.count += 1;
        heap.sum += value;
    }

    /// The same, in seconds.
    pub fn took(&self, labels: [&str; N], time: Duration) {
        self.observe(labels, time.as_secs_f64());
    }

    /// Series of what is gone.
    pub fn forget(&self, gone: impl Fn(&[String; N]) -> bool) {
        open(&self.series).retain(|labels, _| !gone(labels));
    }

    /// How many one series has seen.
    #[must_use]
    pub fn count(&self, labels: [&str; N]) -> u64 {
        open(&self.series).get(&labels.map(str::to_owned)).map_or(0, |heap| heap.count)
    }
}

fn empty(bounds: &[f64]) -> Heap {
    Heap { buckets: vec![0; bounds.len()], count: 0, sum: 0.0 }
}

impl<const N: usize> Family for Histogram<N> {
    type Labels = ([&'static str; N], Vec<f64>);

    fn make(name: &'static str, help: &'static str, (labels, bounds): Self::Labels) -> Self {
        let mut series = BTreeMap::new();
        if N == 0 {
            series.insert([""; N].map(str::to_owned), empty(&bounds));
        }
        Self { head: Head { name, help, labels }, bounds, series: Mutex::new(series) }
    }

    #[cfg(test)]
    fn about(&self) -> About {
        (self.head.name, Kind::Histogram, self.head.labels.to_vec())
    }

    #[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 lose their last digit, as upstream")]
    fn write(&self, text: &mut Text) {
        let series = open(&self.series);
        let name = self.head.name;
        if !series.is_empty() {
            text.family(name, self.head.help, Kind::Histogram);
        }
        let (bucket_name, sum, count) =
            (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
        for (labels, heap) in series.iter() {
            let pairs = self.head.pairs(labels);
            let mut below = 0;
            let finite = self.bounds.iter().zip(&heap.buckets).map(|(bound, n)| (number(*bound), *n));
            for (bound, more) in finite {
                below += more;
                let with: Vec<_> = pairs.iter().copied().chain([("le", bound.as_str())]).collect();
                text.sample(&bucket_name, &with, below as f64);
            }
            let all: Vec<_> = pairs.iter().copied().chain([("le", "+Inf")]).collect();
            text.sample(&bucket_name, &all, heap.count as f64);
            text.sample(&sum, &pairs, heap.sum);
            text.sample(&count, &pairs, heap.count as f64);
        }
    }
}

/// A number that somebody knows at any time: asked for when it is written. Not there before it is
/// known whom to ask.
pub struct GaugeFunc {
    head: Head<0>,
    whom: OnceLock<Box<dyn Fn() -> f64 + Send + Sync>>,
}

impl GaugeFunc {
    /// Whom to ask; the first one stays.
    pub fn of(&self, whom: impl Fn() -> f64 + Send + Sync + 'static) {
        // One that came later would have to be told apart by a label.
        let _ = self.whom.set(Box::new(whom));
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> Option<f64> {
        self.whom.get().map(|whom| whom())
    }
}

impl std::fmt::Debug for GaugeFunc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GaugeFunc").field("head", &self.head).finish_non_exhaustive()
    }
}

impl Family for GaugeFunc {
    type Labels = [&'static str; 0];

    fn make(name: &'static str, help: &'static str, labels: Self::Labels) -> Self {
        Self { head: Head { name, help, labels }, whom: OnceLock::new() }
    }

    #[cfg(test)]
    fn about(&self) -> About {
        (self.head.name, Kind::Gauge, self.head.labels.to_vec())
    }

    fn write(&self, text: &mut Text) {
        if let Some(value) = self.get() {
            text.family(self.head.name, self.head.help, Kind::Gauge);
            text.sample(self.head.name, &[], value);
        }
    }
}

/// Each `factor` times the one before.
pub(super) fn exponential(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor)).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(family: &impl Family) -> String {
        let mut text = Text::new();
        family.write(&mut text);
        text.finish()
    }

    #[test]
    fn a_series_is_written_once_it_is_there() {
        let bare: Counter = Counter::make("a_total", "A", []);
        assert_eq!(written(&bare), "# HELP a_total A\n# TYPE a_total counter\na_total 0\n");
        let labelled: Counter<1> = Counter::make("b_total", "B", ["kind"]);
        assert_eq!(written(&labelled), "");
        labelled.inc(["x"]);
        labelled.add(["x"], 2.0);
        assert_eq!(labelled.get(["x"]), Some(3.0));
        assert_eq!(labelled.get(["y"]), None);
        assert!(written(&labelled).ends_with("b_total{kind=\"x\"} 3\n"));
    }

    #[test]
    fn a_gauge_forgets_what_is_gone() {
        let gauge: Gauge<1> = Gauge::make("g", "G", ["state"]);
        gauge.set(["old"], 1.0);
        gauge.replace([(["new".to_owned()], 2.0)]);
        assert_eq!(written(&gauge), "# HELP g G\n# TYPE g gauge\ng{state=\"new\"} 2\n");
    }

    #[test]
    fn a_number_is_asked_for_when_it_is_written() {
        let asked = GaugeFunc::make("t", "T", []);
        assert_eq!(written(&asked), "", "nobody knows it");
        asked.of(|| f64::INFINITY);
        assert_eq!(written(&asked), "# HELP t T\n# TYPE t gauge\nt +Inf\n");
    }

    #[test]
    fn series_of_what_is_gone_go() {
        let counter: Counter<1> = Counter::make("c_total", "C", ["pod"]);
        let histogram: Histogram<1> = Histogram::make("h", "H", (["pod"], vec![1.0]));
        for pod in ["here", "gone"] {
            counter.inc([pod]);
            histogram.observe([pod], 0.5);
        }
        counter.forget(|[pod]| pod == "gone");
        histogram.forget(|[pod]| pod == "gone");
        assert_eq!((counter.get(["here"]), counter.get(["gone"])), (Some(1.0), None));
        assert_eq!((histogram.count(["here"]), histogram.count(["gone"])), (1, 0));
    }

    #[test]
    fn buckets_are_cumulative_and_bounds_belong_to_them() {
        let histogram: Histogram<1> = Histogram::make("h", "H", (["op"], vec![0.5, 1.0]));
        for value in [0.5, 0.75, 7.0] {
            histogram.observe(["x"], value);
        }
        assert_eq!(
            written(&histogram),
            "# HELP h H\n# TYPE h histogram\nh_bucket{op=\"x\",le=\"0.5\"} 1\nh_bucket{op=\"x\",le=\"1\"} 2\n\
             h_bucket{op=\"x\",le=\"+Inf\"} 3\nh_sum{op=\"x\"} 8.25\nh_count{op=\"x\"} 3\n"
        );
        assert_eq!(exponential(1.0, 2.0, 3), [1.0, 2.0, 4.0]);
    }
}
