package journal

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/effect"
)

// errReader refuses what only the driver may do.
var errReader = errors.New("the journal is only read")

// Read gives the records below the state folder, sorted by volume id, and what is wrong there, a sentence each. It changes nothing, and so
// may run beside the driver: of what changes meanwhile it shows the state before or after. None where there is no journal. node is that of
// the volume ids.
func Read(stateDir, node string) (records []Record, problems []string, err error) {
	if _, err := os.Stat(filepath.Join(stateDir, "journal")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	s, err := Open(context.Background(), stateDir, node, func(context.Context, effect.Effect, func() error) error { return errReader })
	if err != nil {
		return nil, nil, err
	}
	return s.All(), s.Problems(), nil
}
