// What the upstream kubelet of this release accepts, as data for agent/src/config/upstream: every flag with its
// type, its default and the field that it sets, every field of its configuration with its default, every feature gate,
// the names of cipher suites, and what it tells: metrics and reasons of events.
//
//	flags     name, letter, type, value without "=", default, field, deprecation; one line each, tabs between
//	fields    each JSON path of KubeletConfiguration v1beta1 and its Go type
//	defaults  the configuration that an empty file gives, as JSON
//	gates     name, default, locked, stage
//	metrics   endpoint, name, type, labels: as upstream documents them, and what its list lacks from its
//	          code; of /metrics/cadvisor the names alone
//	reasons   of the kubelet's events, and whether some code sends them or they are only declared
//	ciphers   each name that tlsCipherSuites may have
//
// A flag's field is found by trying: it is set, and what changed in the configuration is the field.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // has flags of its own
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if err := logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		return err
	}
	if len(args) != 1 {
		return errors.New("one of flags, fields, defaults, gates, metrics, reasons, ciphers")
	}
	switch args[0] {
	case "flags":
		return flags(out)
	case "fields":
		fields(out, reflect.TypeFor[v1beta1.KubeletConfiguration](), "")
		return nil
	case "defaults":
		return defaults(out)
	case "gates":
		return gates(out)
	case "metrics":
		return metrics(out)
	case "reasons":
		return reasons(out)
	case "ciphers":
		_, err := fmt.Fprintln(out, strings.Join(cliflag.TLSCipherPossibleValues(), "\n"))
		return err
	default:
		return fmt.Errorf("unknown list %q", args[0])
	}
}

// all makes every flag of the kubelet over a configuration of its own.
func all() (*pflag.FlagSet, *config.KubeletConfiguration, error) {
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	set.SetOutput(io.Discard)
	kc, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, nil, err
	}
	options.NewKubeletFlags().AddFlags(set)
	options.AddKubeletConfigFlags(set, kc)
	options.AddGlobalFlags(set)
	set.BoolP("help", "h", false, "help for kubelet")
	return set, kc, nil
}

func flags(out io.Writer) error {
	set, kc, err := all()
	if err != nil {
		return err
	}
	before, err := leaves(kc)
	if err != nil {
		return err
	}
	var names []string
	set.VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	for _, name := range names {
		flag := set.Lookup(name)
		field, err := changed(name, flag.Value.Type(), before)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, flag.Shorthand, flag.Value.Type(), flag.NoOptDefVal,
			flag.DefValue, field, flag.Deprecated)
	}
	return nil
}

// changed sets one flag of a fresh set and tells which field of the configuration it belongs to.
func changed(name, kind string, before map[string]string) (string, error) {
	for _, sample := range samples(name, kind) {
		set, kc, err := all()
		if err != nil {
			return "", err
		}
		if err := set.Set(name, sample); err != nil {
			continue
		}
		after, err := leaves(kc)
		if err != nil {
			return "", err
		}
		found := map[string]bool{}
		for path, value := range after {
			if before[path] != value {
				found[path] = true
			}
		}
		for path := range before {
			if _, there := after[path]; !there {
				found[path] = true
			}
		}
		if len(found) > 1 {
			return "", fmt.Errorf("--%s changes %v", name, found)
		}
		for path := range found {
			return path, nil
		}
	}
	return "", nil
}

func samples(name, kind string) []string {
	switch kind {
	case "bool":
		return []string{"true", "false"}
	case "duration":
		return []string{"7m7s"}
	case "ip":
		return []string{"192.0.2.7"}
	case "mapStringBool":
		return []string{"AllAlpha=true"}
	case "reserved-memory":
		return []string{"0:memory=7Mi"}
	}
	special := map[string][]string{
		"register-with-taints": {"a=b:NoSchedule"},
		"eviction-hard":        {"memory.available<7Mi"},
		"eviction-soft":        {"memory.available<7Mi"},
		"manifest-url-header":  {"a:b"},
		"reserved-memory":      {"0:memory=7Mi"},
		"vmodule":              {"file=7"},
		"logging-format":       {"json"},
	}
	if found, there := special[name]; there {
		return found
	}
	return []string{"7", "7Mi", "memory=7", "a=7", "a"}
}

// leaves is the configuration as it is written, by field. A field of the top level that holds a list or a map counts
// as one, and so does each below a struct.
func leaves(kc *config.KubeletConfiguration) (map[string]string, error) {
	built, _, err := scheme.NewSchemeAndCodecs()
	if err != nil {
		return nil, err
	}
	versioned := &v1beta1.KubeletConfiguration{}
	if err := built.Convert(kc, versioned, nil); err != nil {
		return nil, err
	}
	found := map[string]string{}
	collect(found, reflect.ValueOf(*versioned), "")
	return found, nil
}

func collect(found map[string]string, value reflect.Value, prefix string) {
	for i := range value.NumField() {
		field, inner := value.Type().Field(i), value.Field(i)
		if field.Name == "TypeMeta" {
			continue
		}
		if jsonName(field) == "" {
			collect(found, inner, prefix)
			continue
		}
		path := prefix + jsonName(field)
		if isGroup(inner.Type()) {
			collect(found, inner, path+".")
			continue
		}
		written, err := json.Marshal(inner.Interface())
		if err != nil {
			written = []byte(err.Error())
		}
		found[path] = string(written)
	}
}

func isGroup(kind reflect.Type) bool {
	if kind.Kind() != reflect.Struct {
		return false
	}
	_, own := reflect.New(kind).Interface().(json.Marshaler)
	return !own
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

func fields(out io.Writer, kind reflect.Type, prefix string) {
	for i := range kind.NumField() {
		field := kind.Field(i)
		if field.Name == "TypeMeta" {
			continue
		}
		name := jsonName(field)
		if name == "" {
			fields(out, field.Type, prefix)
			continue
		}
		below := field.Type
		if below.Kind() == reflect.Pointer {
			below = below.Elem()
		}
		if isGroup(below) {
			fields(out, below, prefix+name+".")
			continue
		}
		fmt.Fprintf(out, "%s%s\t%s\n", prefix, name, field.Type)
	}
}

func defaults(out io.Writer) error {
	built, _, err := scheme.NewSchemeAndCodecs()
	if err != nil {
		return err
	}
	versioned, internal := &v1beta1.KubeletConfiguration{}, &config.KubeletConfiguration{}
	built.Default(versioned)
	// There and back, as the kubelet does before it shows the configuration.
	if err := built.Convert(versioned, internal, nil); err != nil {
		return err
	}
	shown := &v1beta1.KubeletConfiguration{}
	if err := built.Convert(internal, shown, nil); err != nil {
		return err
	}
	shown.SetGroupVersionKind(v1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration"))
	written := json.NewEncoder(out)
	written.SetIndent("", "  ")
	return written.Encode(shown)
}

func gates(out io.Writer) error {
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, string(name))
	}
	sort.Strings(names)
	for name, spec := range known {
		for i := range names {
			if names[i] == string(name) {
				names[i] = fmt.Sprintf("%s\t%t\t%t\t%s", name, spec.Default, spec.LockToDefault, spec.PreRelease)
			}
		}
	}
	_, err := fmt.Fprintln(out, strings.Join(names, "\n"))
	return err
}
