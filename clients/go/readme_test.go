package mailappliance_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var block = regexp.MustCompile("(?ms)^```(go|sh)\n(.*?)^```$")

func readme(t *testing.T) [][]string {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return block.FindAllStringSubmatch(string(text), -1)
}

// Every piece of code in the README is code of a test, but for the program, which is run.
func TestReadmeShowsTestedCode(t *testing.T) {
	var tested strings.Builder
	for _, name := range []string{"example_test.go", "mailappliancetest/recorder_test.go", "mailappliancetest/dev_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tested.WriteString(indentation.ReplaceAllString(string(text), ""))
	}
	pieces := 0
	for _, found := range readme(t) {
		if found[1] == "sh" || strings.HasPrefix(found[2], "package main") {
			continue
		}
		pieces++
		if !strings.Contains(tested.String(), indentation.ReplaceAllString(found[2], "")) {
			t.Errorf("not in a test:\n%s", found[2])
		}
	}
	if pieces == 0 {
		t.Error("no code found")
	}
}

var indentation = regexp.MustCompile(`(?m)^\t+`)

// The README's way to install the module and its first program, in a module next to a checkout.
func TestReadmeProgram(t *testing.T) {
	for _, name := range []string{"go", "sh"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		io.WriteString(w, `{"id":"msg_1","status":"queued"}`)
	}))
	defer server.Close()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	app, checkout := filepath.Join(root, "app"), filepath.Join(root, "mail-appliance", "clients")
	for _, folder := range []string{app, checkout} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(here, filepath.Join(checkout, "go")); err != nil {
		t.Fatal(err)
	}
	run := func(command ...string) string {
		c := exec.Command(command[0], command[1:]...)
		c.Dir = app
		c.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "MAIL_APPLIANCE_URL="+server.URL, "MAIL_APPLIANCE_TOKEN=token")
		output, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", command, err, output)
		}
		return string(output)
	}
	run("go", "mod", "init", "app")
	for _, found := range readme(t) {
		switch {
		case found[1] == "sh":
			run("sh", "-ec", found[2])
		case strings.HasPrefix(found[2], "package main"):
			if err := os.WriteFile(filepath.Join(app, "main.go"), []byte(found[2]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	run("go", "vet", ".")
	if got := run("go", "run", "."); got != "msg_1: queued\n" {
		t.Errorf("%q", got)
	}
}
