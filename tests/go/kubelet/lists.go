package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cadvisor/container"
	v2 "github.com/google/cadvisor/info/v2"
	cadvisor "github.com/google/cadvisor/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"
)

// upstream is the folder of the kubelet's module.
func upstream() (string, error) {
	said, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	return strings.TrimSpace(string(said)), err
}

// metrics lists what upstream says of its metrics, and what its cAdvisor may tell.
func metrics(out io.Writer) error {
	root, err := upstream()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, "test/instrumentation/documentation/documentation-list.yaml"))
	if err != nil {
		return err
	}
	var list []struct {
		Namespace, Subsystem, Name, Type string
		Labels                           []string
		ComponentEndpoints               []struct{ Component, Endpoint string }
	}
	if err := yaml.Unmarshal(text, &list); err != nil {
		return err
	}
	lines, known := map[string]bool{}, map[string]bool{}
	for _, metric := range list {
		name := prometheus.BuildFQName(metric.Namespace, metric.Subsystem, metric.Name)
		slices.Sort(metric.Labels)
		for _, at := range metric.ComponentEndpoints {
			if at.Component == "kubelet" {
				known[name] = true
				lines[fmt.Sprintf("%s\t%s\t%s\t%s", at.Endpoint, name, metric.Type, strings.Join(metric.Labels, ","))] = true
			}
		}
	}
	packages, err := parse(filepath.Join(root, "pkg/kubelet"))
	if err != nil {
		return err
	}
	// The list is not complete.
	for name, rest := range inCode(packages, constants(packages[filepath.Join(root, "pkg/kubelet/metrics")])) {
		if !known[name] {
			lines["/metrics\t"+name+"\t"+rest] = true
		}
	}
	names, err := ofCadvisor()
	if err != nil {
		return err
	}
	for _, name := range names {
		lines["/metrics/cadvisor\t"+name+"\t\t"] = true
	}
	sorted := make([]string, 0, len(lines))
	for line := range lines {
		sorted = append(sorted, line)
	}
	slices.Sort(sorted)
	_, err = fmt.Fprintln(out, strings.Join(sorted, "\n"))
	return err
}

// ofCadvisor names the families of the collectors that the kubelet makes, with the sets that it asks for.
func ofCadvisor() ([]string, error) {
	included := container.MetricSet{}
	for _, kind := range []container.MetricKind{
		container.CpuUsageMetrics, container.MemoryUsageMetrics, container.CpuLoadMetrics, container.DiskIOMetrics,
		container.DiskUsageMetrics, container.NetworkUsageMetrics, container.AppMetrics, container.ProcessMetrics,
		container.OOMMetrics, container.PressureMetrics,
	} {
		included[kind] = struct{}{}
	}
	var names []string
	for _, collector := range []prometheus.Collector{
		cadvisor.NewPrometheusCollector(nil, nil, included, nil, v2.RequestOptions{}),
		cadvisor.NewPrometheusMachineCollector(nil, included),
	} {
		found := make(chan *prometheus.Desc)
		go func() {
			collector.Describe(found)
			close(found)
		}()
		for desc := range found {
			_, rest, _ := strings.Cut(desc.String(), `fqName: "`)
			name, _, there := strings.Cut(rest, `"`)
			if !there {
				return nil, fmt.Errorf("no name in %s", desc)
			}
			names = append(names, name)
		}
	}
	return names, nil
}

// reasons lists the reasons of the kubelet's events: "sent" when some code gives one to a recorder, else "declared".
func reasons(out io.Writer) error {
	root, err := upstream()
	if err != nil {
		return err
	}
	// Volumes are told of by both.
	kubelet, volume := filepath.Join(root, "pkg/kubelet"), filepath.Join(root, "pkg/volume")
	packages, err := parse(kubelet, volume)
	if err != nil {
		return err
	}
	declared := constants(packages[filepath.Join(kubelet, "events")])
	found := map[string]string{}
	for _, reason := range declared {
		found[reason] = "declared"
	}
	for _, parsed := range packages {
		own := constants(parsed)
		for _, file := range parsed {
			ast.Inspect(file, func(node ast.Node) bool {
				if call, is := node.(*ast.CallExpr); is {
					if reason := told(call, own, declared); reason != "" {
						found[reason] = "sent"
					}
				}
				return true
			})
		}
	}
	lines := make([]string, 0, len(found))
	for reason, how := range found {
		lines = append(lines, reason+"\t"+how)
	}
	slices.Sort(lines)
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// parse reads the code below folders, by package; no tests, and none for Windows.
func parse(folders ...string) (map[string][]*ast.File, error) {
	files, packages := token.NewFileSet(), map[string][]*ast.File{}
	walk := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasSuffix(path, "_windows.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], file)
		return err
	}
	for _, folder := range folders {
		if err := filepath.WalkDir(folder, walk); err != nil {
			return nil, err
		}
	}
	return packages, nil
}

// inCode finds metrics by the calls that make them: type and labels by name.
func inCode(packages map[string][]*ast.File, shared map[string]string) map[string]string {
	found := map[string]string{}
	for _, parsed := range packages {
		own := constants(parsed)
		text := func(value ast.Expr) string {
			switch value := value.(type) {
			case *ast.Ident:
				return own[value.Name]
			case *ast.SelectorExpr:
				return shared[value.Sel.Name]
			default:
				return literal(value)
			}
		}
		for _, file := range parsed {
			ast.Inspect(file, func(node ast.Node) bool {
				call, is := node.(*ast.CallExpr)
				if !is || len(call.Args) == 0 {
					return true
				}
				made, is := call.Fun.(*ast.SelectorExpr)
				if !is {
					return true
				}
				kind := strings.TrimSuffix(strings.TrimPrefix(made.Sel.Name, "New"), "Vec")
				if !slices.Contains([]string{"Counter", "Gauge", "Histogram"}, kind) {
					return true
				}
				if name := named(call.Args[0], text); name != "" {
					found[name] = kind + "\t" + strings.Join(labels(call.Args[1:], text), ",")
				}
				return true
			})
		}
	}
	return found
}

// named is the full name in the options of a metric.
func named(options ast.Expr, text func(ast.Expr) string) string {
	if pointer, is := options.(*ast.UnaryExpr); is {
		options = pointer.X
	}
	group, is := options.(*ast.CompositeLit)
	if !is {
		return ""
	}
	parts := map[string]string{}
	for _, element := range group.Elts {
		if pair, is := element.(*ast.KeyValueExpr); is {
			if key, is := pair.Key.(*ast.Ident); is {
				parts[key.Name] = text(pair.Value)
			}
		}
	}
	return prometheus.BuildFQName(parts["Namespace"], parts["Subsystem"], parts["Name"])
}

func labels(arguments []ast.Expr, text func(ast.Expr) string) []string {
	var found []string
	for _, argument := range arguments {
		if list, is := argument.(*ast.CompositeLit); is {
			for _, label := range list.Elts {
				found = append(found, text(label))
			}
		}
	}
	slices.Sort(found)
	return found
}

// constants are the texts of a package, by name.
func constants(parsed []*ast.File) map[string]string {
	found := map[string]string{}
	for _, file := range parsed {
		for _, declaration := range file.Decls {
			group, is := declaration.(*ast.GenDecl)
			if !is || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				values := spec.(*ast.ValueSpec)
				for i, value := range values.Values {
					if text := literal(value); text != "" {
						found[values.Names[i].Name] = text
					}
				}
			}
		}
	}
	return found
}

func literal(value ast.Expr) string {
	basic, is := value.(*ast.BasicLit)
	if !is || basic.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(basic.Value)
	if err != nil {
		return ""
	}
	return text
}

// told is the reason that follows the type of an event among the arguments of a call.
func told(call *ast.CallExpr, own, declared map[string]string) string {
	for i, argument := range call.Args {
		kind, is := argument.(*ast.SelectorExpr)
		if !is || !strings.HasPrefix(kind.Sel.Name, "EventType") || i+1 == len(call.Args) {
			continue
		}
		switch reason := call.Args[i+1].(type) {
		case *ast.BasicLit:
			return literal(reason)
		case *ast.Ident:
			return own[reason.Name]
		case *ast.SelectorExpr:
			return declared[reason.Sel.Name]
		}
	}
	return ""
}
