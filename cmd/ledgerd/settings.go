// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"
)

// envPrefix of every variable; the rest is the flag's name in upper case, with _ for -.
const envPrefix = "LEDGERD_"

func envName(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// The ranks of where a value may come from: a higher one wins.
const (
	fromDefault = iota
	fromFile
	fromEnv
	fromFlag
)

// setting is one field of Config, or the -file twin of a secret one.
type setting struct {
	name, help string
	field      reflect.Value
	// twin is set for a -file setting: the secret whose value the file holds.
	twin *setting

	rank   int
	origin string
	text   string // of a twin: the path
	flag   *string
}

// settings are all fields of one Config. They know no command: each binds the flags that it wants.
type settings struct {
	all    []*setting
	byName map[string]*setting
	config string // --config
}

func newSettings(c *Config) *settings {
	s := &settings{byName: map[string]*setting{}}
	add := func(x *setting) {
		x.origin = "default"
		s.all = append(s.all, x)
		s.byName[x.name] = x
	}
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		x := &setting{name: tag.Get("name"), help: tag.Get("help"), field: v.Field(i)}
		add(x)
		if _, secret := x.field.Interface().(Secret); secret {
			add(&setting{name: x.name + "-file", help: "file that holds --" + x.name, twin: x})
		}
	}
	return s
}

// bind makes flags of the named settings; none named: of all.
func (s *settings) bind(flags *pflag.FlagSet, names ...string) {
	flags.StringVar(&s.config, "config", "", "YAML file with settings by these same names ("+envName("config")+")")
	for _, x := range s.all {
		if len(names) == 0 || slices.Contains(names, x.name) || x.twin != nil && slices.Contains(names, x.twin.name) {
			flags.VarPF((*flagValue)(x), x.name, "", x.help+" ("+envName(x.name)+")")
		}
	}
}

// flagValue notes what the command line says. It is judged later, together with the other sources, so that no error shows it.
type flagValue setting

func (f *flagValue) Set(text string) error { f.flag = &text; return nil }

func (f *flagValue) Type() string {
	if f.twin != nil {
		return "path"
	}
	switch f.field.Interface().(type) {
	case time.Duration:
		return "duration"
	case int:
		return "number"
	}
	return "text"
}

func (f *flagValue) String() string {
	if f.flag != nil || !f.field.IsValid() {
		return ""
	}
	return (*setting)(f).show()
}

// resolve puts what file, environment and flags say into the Config, each rank above the one before.
func (s *settings) resolve(env []string) error {
	vars, err := s.variables(env)
	if err != nil {
		return err
	}
	path := s.config
	if path == "" {
		path = vars["config"]
	}
	if path != "" {
		s.config = path
		if err := s.readFile(path); err != nil {
			return err
		}
	}
	var faults []error
	for _, x := range s.all {
		if text, ok := vars[x.name]; ok {
			faults = append(faults, x.set(text, fromEnv, "environment "+envName(x.name)))
		}
	}
	for _, x := range s.all {
		if x.flag != nil {
			faults = append(faults, x.set(*x.flag, fromFlag, "flag --"+x.name))
		}
	}
	faults = append(faults, s.readSecrets())
	return errors.Join(faults...)
}

// serviceLink is the form of variables that Kubernetes puts into each pod for a service whose name begins with ledgerd.
var serviceLink = regexp.MustCompile(`^LEDGERD_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// variables returns the LEDGERD_* variables by the names of settings. An empty one counts as not given.
func (s *settings) variables(env []string) (map[string]string, error) {
	vars := map[string]string{}
	var faults []error
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || serviceLink.MatchString(name) {
			continue
		}
		key := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		switch {
		case key != "config" && s.byName[key] == nil, envName(key) != name:
			faults = append(faults, fmt.Errorf("environment variable %s: is no setting; ledgerd config print lists them", name))
		case value != "":
			vars[key] = value
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return vars, errors.Join(faults...)
}

// readFile reads the YAML file strictly: one mapping, known keys, each once, plain values.
func (s *settings) readFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fileFault("config", path, err)
	}
	if blank(data) { // packages ship a file in which everything is commented out
		return nil
	}
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		var load *yaml.LoadError
		if errors.As(err, &load) && load.Mark.Line > 0 {
			return fmt.Errorf("%s:%d: must be valid YAML", path, load.Mark.Line)
		}
		return fmt.Errorf("%s: must be one YAML document of settings such as log-level: info", path)
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: must be a mapping of settings such as log-level: info", path, root.Line)
	}
	var faults []error
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		x := s.byName[key.Value]
		origin := fmt.Sprintf("%s:%d", path, key.Line)
		switch {
		case key.Kind != yaml.ScalarNode || x == nil:
			faults = append(faults, fmt.Errorf("%s: unknown key; ledgerd config print lists the settings", origin))
		case value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null":
			faults = append(faults, fmt.Errorf("%s: %s must be one plain value", origin, x.name))
		case x.rank == fromFile:
			faults = append(faults, fmt.Errorf("%s: %s is given twice; keep one of the two", origin, x.name))
		default:
			if err := x.set(value.Value, fromFile, "file "+origin); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", origin, err))
			}
		}
	}
	return errors.Join(faults...)
}

// blank says that a file has nothing but comments.
func blank(data []byte) bool {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// set parses a value. Errors name the setting and the rule.
func (x *setting) set(text string, rank int, origin string) error {
	if x.twin != nil {
		x.text = text
	} else {
		switch x.field.Interface().(type) {
		case time.Duration:
			d, err := time.ParseDuration(text)
			if err != nil {
				return ruleError(x.name, "must be a number with its unit, such as 3s")
			}
			x.field.SetInt(int64(d))
		case int:
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil {
				return ruleError(x.name, "must be a whole number")
			}
			x.field.SetInt(n)
		default:
			x.field.SetString(text)
		}
	}
	x.rank, x.origin = rank, origin
	return nil
}

// readSecrets reads the files of secrets that are given so, unless a higher rank gives the secret itself.
func (s *settings) readSecrets() error {
	var faults []error
	for _, x := range s.all {
		if x.twin == nil || x.rank == fromDefault || x.twin.rank > x.rank {
			continue
		}
		if x.twin.rank == x.rank {
			faults = append(faults, ruleError(x.twin.name, "is given both itself and as a file; keep one of the two"))
			continue
		}
		data, err := os.ReadFile(x.text)
		if err != nil {
			faults = append(faults, fileFault(x.name, x.text, err))
			continue
		}
		if len(bytes.TrimSpace(data)) == 0 {
			faults = append(faults, fileError(x.name, x.text, "is empty: it must hold what --"+x.twin.name+" would be"))
			continue
		}
		faults = append(faults, x.twin.set(strings.TrimRight(string(data), "\r\n"), x.rank, x.origin))
	}
	return errors.Join(faults...)
}

// secretFiles are the files that secret settings were read from, by the setting that names the file.
func (s *settings) secretFiles() map[string]string {
	files := map[string]string{}
	for _, x := range s.all {
		if x.twin == nil {
			continue
		}
		switch {
		case x.twin.rank == fromFile && x.rank == fromDefault:
			files["config"] = s.config
		case x.rank != fromDefault && x.twin.origin == x.origin:
			files[x.name] = x.text
		}
	}
	return files
}

// show is the value as it may be printed.
func (x *setting) show() string {
	if x.twin != nil {
		return x.text
	}
	return fmt.Sprint(x.field.Interface())
}

// print writes the settings: as a YAML file that ledgerd reads, or as a table with the source of each. Secrets are hidden.
func (s *settings) print(w io.Writer, origin bool) error {
	if origin {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "SETTING\tVALUE\tORIGIN")
		for _, x := range s.all {
			fmt.Fprintf(table, "%s\t%s\t%s\n", x.name, x.show(), x.origin)
		}
		return table.Flush()
	}
	for _, x := range s.all {
		// Of a secret and its file only the one that counts: both together would not be read.
		twin := s.byName[x.name+"-file"]
		if x.twin != nil && x.origin != x.twin.origin || twin != nil && twin.rank != fromDefault && twin.origin == x.origin {
			continue
		}
		if x.twin != nil && x.rank == fromDefault {
			continue
		}
		value, err := yaml.Marshal(x.show())
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s: %s", x.name, value); err != nil {
			return err
		}
	}
	return nil
}
