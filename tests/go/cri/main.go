// Command cri-suite checks a CRI runtime from outside, as a kubelet sees it: one line for each
// check and a summary. It knows no runtime by name; what it expects was proved on containerd
// first. It must run in the runtime's own network, mount and pid namespaces, as root.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"sort"
	"time"
)

// check is one expectation. Its name is area/what.
type check struct {
	name string
	run  func(*T)
}

var checks []check

func register(name string, run func(*T)) {
	checks = append(checks, check{name: name, run: run})
}

func main() {
	options := Options{}
	flag.StringVar(&options.Endpoint, "endpoint", "", "the runtime's socket, unix:///PATH")
	flag.StringVar(&options.Image, "image", "", "image with busybox; its siblings (username, uid, other, entry …) are looked for beside it")
	flag.StringVar(&options.PrivateImage, "private-image", "", "image `private:1` in a registry that asks for a password")
	flag.StringVar(&options.PrivateUser, "private-user", "", "who may pull it")
	flag.StringVar(&options.PrivatePassword, "private-password", "", "that user's password")
	flag.StringVar(&options.PinnedImage, "pinned-image", "", "image that the runtime's configuration pins")
	flag.StringVar(&options.CgroupParent, "cgroup-parent", "", "cgroup below which the pods' cgroups are named, as a kubelet would; empty leaves it to the runtime")
	flag.StringVar(&options.CdiDir, "cdi-dir", "/var/run/cdi", "folder where the runtime looks for CDI files")
	flag.StringVar(&options.SeccompDir, "seccomp-dir", os.TempDir(), "folder for localhost seccomp profiles")
	flag.StringVar(&options.RuntimeHandler, "runtime-handler", "", "of every sandbox; empty for the default one")
	flag.DurationVar(&options.Timeout, "timeout", 60*time.Second, "for each check")
	pattern := flag.String("run", "", "only checks whose name matches this")
	list := flag.Bool("list", false, "print the names and end")
	flag.Parse()

	wanted, err := regexp.Compile(*pattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cri-suite: --run:", err)
		os.Exit(2)
	}
	sort.SliceStable(checks, func(i, j int) bool { return checks[i].name < checks[j].name })
	if *list {
		for _, one := range checks {
			fmt.Println(one.name)
		}
		return
	}
	if options.Endpoint == "" || options.Image == "" {
		fmt.Fprintln(os.Stderr, "cri-suite: --endpoint and --image are needed")
		os.Exit(2)
	}
	suite, err := connect(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cri-suite:", err)
		os.Exit(2)
	}
	os.Exit(suite.runAll(wanted))
}

// runAll runs what matches, one check at a time, and returns the exit code.
func (s *Suite) runAll(wanted *regexp.Regexp) int {
	counts := map[string]int{}
	begin := time.Now()
	for _, one := range checks {
		if !wanted.MatchString(one.name) {
			continue
		}
		start := time.Now()
		verdict, detail := s.runOne(one)
		counts[verdict]++
		line := fmt.Sprintf("%s %s (%d ms)", verdict, one.name, time.Since(start).Milliseconds())
		if detail != "" {
			line += ": " + detail
		}
		fmt.Println(line)
	}
	fmt.Printf("%d passed, %d failed, %d skipped in %.1f s\n",
		counts["PASS"], counts["FAIL"], counts["SKIP"], time.Since(begin).Seconds())
	if counts["FAIL"] > 0 || counts["PASS"] == 0 {
		return 1
	}
	return 0
}
