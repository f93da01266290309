// SPDX-License-Identifier: Apache-2.0

package pgtest

import "testing"

// TestARestoredBackupIsOlder: only one of the two ways shows on its timeline.
func TestARestoredBackupIsOlder(t *testing.T) {
	s := Own(t, Options{Durable: true})
	makeTable(t, s)
	insert(t, s, 1)
	backup := s.Backup(t)
	insert(t, s, 2)
	system, timeline := identity(t, s)
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for how, want := range map[Recovery]int{SameTimeline: timeline, NewTimeline: timeline + 1} {
		restored := backup.Restore(t, how)
		if s, l := identity(t, restored); s != system || l != want {
			t.Errorf("restored in the way %d, system %s on timeline %d has become %s on %d", how, system, timeline, s, l)
		}
		wantKept(t, restored.DSN("postgres"), 1)
		insert(t, restored, 3)
		wantKept(t, restored.DSN("postgres"), 1, 3)
	}
}

// TestABackupIsWholeWhileTheServerWrites: what was committed before it began is there, and of each transaction all or nothing.
func TestABackupIsWholeWhileTheServerWrites(t *testing.T) {
	s := Own(t, Options{})
	makeTable(t, s)
	insert(t, s, 0)
	stop, writes := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for n := 0; err == nil; n++ {
			select {
			case <-stop:
				close(writes)
				return
			default:
			}
			err = s.exec(t.Context(), "INSERT INTO kept SELECT 1 FROM generate_series(1, 1000); UPDATE kept SET n = n + 1 WHERE n > 0")
		}
		writes <- err
	}()
	backup := s.Backup(t)
	close(stop)
	if err := <-writes; err != nil {
		t.Fatal(err)
	}
	restored := backup.Restore(t, SameTimeline)
	if err := restored.until(t.Context(), "count(*) FILTER (WHERE n = 0) = 1 AND count(*) % 1000 = 1 FROM kept"); err != nil {
		t.Error(err)
	}
}
