// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reports records what a reloader told; true for good.
type reports struct{ kinds []string }

func (r *reports) hook(kind string, err error) {
	if err != nil {
		kind += " failed"
	}
	r.kinds = append(r.kinds, kind)
}

func scopeNameOf(t *testing.T, policy *Policy) string {
	t.Helper()
	scope, ok := policy.Scope("spiffe://ledger.test/agent/a")
	if !ok {
		t.Fatal("no scope")
	}
	return scope.Name
}

func policyNamed(scope string) string {
	return scopesWith("scopes: [{name: " + scope + ", principals: [spiffe://ledger.test/agent/a], tools: [t]}]")
}

func TestABrokenPolicyKeepsTheOldOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	writeFile(t, path, policyNamed("first"))
	var told reports
	r, err := NewPolicyReloader(path, told.hook)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(wantChanged, wantErr bool, scope string) {
		t.Helper()
		changed, err := r.Reload()
		if changed != wantChanged || (err != nil) != wantErr {
			t.Errorf("changed %v, error %v; want %v, an error: %v", changed, err, wantChanged, wantErr)
		}
		if got := scopeNameOf(t, r.Current()); got != scope {
			t.Errorf("scope %s in force, want %s", got, scope)
		}
	}
	reload(false, false, "first")
	writeFile(t, path, "trust_domain: ledger.test\nscopes: []\n")
	reload(false, true, "first")
	reload(false, true, "first") // told once only
	writeFile(t, path, policyNamed("first"))
	reload(false, false, "first") // good again without a change
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	reload(false, true, "first")
	writeFile(t, path, policyNamed("second"))
	reload(true, false, "second")
	reload(false, false, "second")

	want := []string{"policy failed", "policy", "policy failed", "policy"}
	if diff := cmp.Diff(want, told.kinds); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

func TestAPolicyThatIsBrokenAtTheStartIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if _, err := NewPolicyReloader(path, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	writeFile(t, path, "scopes: []\n")
	var fault *PolicyError
	if _, err := NewPolicyReloader(path, nil); !errors.As(err, &fault) {
		t.Errorf("broken: %v", err)
	}
}

// TestASymbolicLinkIsSwapped does what Kubernetes does: the file is a link into a
// directory behind a link, and that link is renamed. Size and times stay equal.
func TestASymbolicLinkIsSwapped(t *testing.T) {
	dir := t.TempDir()
	same := time.Unix(1_000_000_000, 0)
	for _, version := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, version, "policy.yaml")
		writeFile(t, path, policyNamed(version))
		if err := os.Chtimes(path, same, same); err != nil {
			t.Fatal(err)
		}
	}
	data, path := filepath.Join(dir, "..data"), filepath.Join(dir, "policy.yaml")
	for link, target := range map[string]string{data: "v1", path: "..data/policy.yaml", data + "_tmp": "v2"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	r, err := NewPolicyReloader(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(data+"_tmp", data); err != nil {
		t.Fatal(err)
	}
	changed, err := r.Reload()
	if !changed || err != nil {
		t.Errorf("changed %v, error %v", changed, err)
	}
	if got := scopeNameOf(t, r.Current()); got != "v2" {
		t.Errorf("scope %s in force", got)
	}
}

func TestRunPollsUntilItsContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	writeFile(t, path, policyNamed("first"))
	synctest.Test(t, func(t *testing.T) {
		r, err := NewPolicyReloader(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Run(ctx, 5*time.Second)
		}()
		writeFile(t, path, policyNamed("second"))
		time.Sleep(4 * time.Second) // the bubble's clock
		synctest.Wait()
		if got := scopeNameOf(t, r.Current()); got != "first" {
			t.Errorf("scope %s before the interval", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := scopeNameOf(t, r.Current()); got != "second" {
			t.Errorf("scope %s after the interval", got)
		}
		cancel()
		<-done
	})
}

// TestFilesThatChangeWhileTheyAreRead is about a pair of files of which one is
// exchanged in the middle of a reading.
func TestFilesThatChangeWhileTheyAreRead(t *testing.T) {
	before, after := []byte("1"), []byte("2")
	reading := 0
	contents, _, err := settled(func() ([][]byte, digest, error) {
		reading++
		pair := [][]byte{after, after}
		if reading == 1 {
			pair[0] = before // half of the swap
		}
		return pair, sumOf(pair...), nil
	})
	if diff := cmp.Diff([][]byte{after, after}, contents); diff != "" || err != nil || reading != 3 {
		t.Errorf("error %v after %d readings, contents (-want +got):\n%s", err, reading, diff)
	}
	reading = 0
	_, _, err = settled(func() ([][]byte, digest, error) {
		reading++
		pair := [][]byte{before, {byte(reading)}}
		return pair, sumOf(pair...), nil
	})
	if !errors.Is(err, errUnstable) || reading > 10 {
		t.Errorf("error %v after %d readings; want it to give up", err, reading)
	}
}
