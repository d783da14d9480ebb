// Command kind does on this machine what `kind load docker-image` and `kind load image-archive` do on a node: kind's
// own code (pkg/cluster/nodeutils), which finds `ctr`, `containerd` and `crictl` in PATH. It knows no runtime by name.
//
//	kind load FILE           loads an archive
//	kind id NAME             prints the ID of the image of this name
//	kind tags ID             prints the tags of the image of this ID
//	kind tag ID NAME         gives the image of this ID one more name
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"sigs.k8s.io/kind/pkg/cluster/nodeutils"
	"sigs.k8s.io/kind/pkg/exec"
)

// here is this machine as a node of kind's: commands run where the program runs.
type here struct{ exec.Cmder }

func (here) String() string              { return "here" }
func (here) Role() (string, error)       { return "worker", nil }
func (here) IP() (string, string, error) { return "127.0.0.1", "", nil }
func (here) SerialLogs(io.Writer) error  { return errors.New("this machine is no container") }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kind:", err)
		// What the command itself said.
		if failed := exec.RunErrorForError(err); failed != nil {
			fmt.Fprintf(os.Stderr, "%s", failed.Output)
		}
		os.Exit(1)
	}
}

func run(words []string) error {
	node := here{exec.DefaultCmder}
	switch {
	case len(words) == 2 && words[0] == "load":
		archive, err := os.Open(words[1])
		if err != nil {
			return err
		}
		defer archive.Close()
		return nodeutils.LoadImageArchive(node, archive)
	case len(words) == 2 && words[0] == "id":
		id, err := nodeutils.ImageID(node, words[1])
		if err == nil {
			fmt.Println(id)
		}
		return err
	case len(words) == 2 && words[0] == "tags":
		found, err := nodeutils.ImageTags(node, words[1])
		tags := []string{}
		for tag := range found {
			tags = append(tags, tag)
		}
		sort.Strings(tags)
		for _, tag := range tags {
			fmt.Println(tag)
		}
		return err
	case len(words) == 3 && words[0] == "tag":
		return nodeutils.ReTagImage(node, words[1], words[2])
	}
	return fmt.Errorf("load FILE, id NAME, tags ID or tag ID NAME, not %q", words)
}
