// Drive runs one operation of a conflist through upstream's libcni, as containerd and CRI-O do, and prints what it
// answers. The test that calls it looks at links, leases and rules itself.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

func main() {
	if err := run(); err != nil {
		var coded *types.Error
		code := uint(0)
		if errors.As(err, &coded) {
			code = coded.Code
		}
		fmt.Fprintf(os.Stderr, "code %d: %v\n", code, err)
		os.Exit(1)
	}
}

func run() error {
	conf := flag.String("conf", "", "file of the conflist")
	bin := flag.String("bin", "", "folder of the plugins")
	cache := flag.String("cache", "", "folder of the cache; results lie in results/ below it")
	id := flag.String("id", "", "container id")
	netns := flag.String("netns", "", "path of the network namespace")
	ports := flag.String("ports", "", "portMappings as JSON")
	valid := flag.String("valid", "", "container ids that GC leaves alone, with commas")
	flag.Parse()

	list, err := libcni.NetworkConfFromFile(*conf)
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{*bin}, *cache, nil)
	attachment := &libcni.RuntimeConf{
		ContainerID: *id,
		NetNS:       *netns,
		IfName:      "eth0",
		Args:        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "test"}, {"K8S_POD_NAME", *id}},
	}
	if *ports != "" {
		var mappings []map[string]any
		if err := json.Unmarshal([]byte(*ports), &mappings); err != nil {
			return err
		}
		attachment.CapabilityArgs = map[string]any{"portMappings": mappings}
	}
	ctx := context.Background()
	switch verb := flag.Arg(0); verb {
	case "ADD":
		result, err := cni.AddNetworkList(ctx, list, attachment)
		if err != nil {
			return err
		}
		return result.Print()
	case "CHECK":
		return cni.CheckNetworkList(ctx, list, attachment)
	case "DEL":
		return cni.DelNetworkList(ctx, list, attachment)
	case "STATUS":
		return cni.GetStatusNetworkList(ctx, list)
	case "GC":
		args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
		for _, id := range strings.Split(*valid, ",") {
			if id != "" {
				args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: "eth0"})
			}
		}
		return cni.GCNetworkList(ctx, list, args)
	case "VALIDATE":
		// Asks every plugin for its VERSION.
		capabilities, err := cni.ValidateNetworkList(ctx, list)
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(capabilities, ","))
		return nil
	case "CACHED":
		result, err := cni.GetNetworkListCachedResult(list, attachment)
		if err != nil || result == nil {
			return errors.Join(err, errors.New("nothing cached"))
		}
		return result.Print()
	default:
		return fmt.Errorf("no operation %q", verb)
	}
}
