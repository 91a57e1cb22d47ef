package cluster

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// AddRoot puts the storage programs of the emulated machine's root in the layer: the same Debian packages as the
// driver's image is made of. The kernel's modules and what only a machine needs is left out.
func (l *Layer) AddRoot(cpio string) error {
	file, err := os.Open(cpio)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<20)
	names := map[string][]string{} // of files with several names: the content comes with the last
	for {
		e, content, err := readNewc(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", cpio, err)
		}
		name := strings.TrimPrefix(e.name, "./")
		if name == "." || !wanted(name) {
			continue
		}
		switch e.mode & 0o170000 {
		case 0o040000:
			l.add(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: e.mode & 0o7777}, nil)
		case 0o120000:
			l.add(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: string(content)}, nil)
		case 0o100000:
			names[e.inode] = append(names[e.inode], name)
			if e.links > 1 && len(content) == 0 && len(names[e.inode]) < e.links {
				continue
			}
			l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: e.mode & 0o7777, Size: int64(len(content))}, content)
			for _, other := range names[e.inode][:len(names[e.inode])-1] {
				l.add(&tar.Header{Name: other, Typeflag: tar.TypeLink, Linkname: name}, nil)
			}
		}
	}
}

func wanted(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	switch top {
	case "bin", "sbin", "lib", "lib64", "usr", "etc", "var":
		return !strings.HasPrefix(name, "usr/lib/modules")
	}
	return false
}

// entry is a file in an archive of the "newc" format.
type entry struct {
	name, inode string
	mode        int64
	links       int
}

// readNewc reads the next entry; io.EOF after the last. The format is in the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst: a header of 13 numbers in hexadecimal, the name, the
// content, both filled up to multiples of four.
func readNewc(in io.Reader) (e entry, content []byte, err error) {
	header := make([]byte, 110)
	if _, err := io.ReadFull(in, header); err != nil {
		return e, nil, err
	}
	if magic := string(header[:6]); magic != "070701" {
		return e, nil, fmt.Errorf("%q is no header of an archive", magic)
	}
	var numbers [13]int64
	for i := range numbers {
		if numbers[i], err = strconv.ParseInt(string(header[6+8*i:14+8*i]), 16, 64); err != nil {
			return e, nil, err
		}
	}
	size, length := numbers[6], numbers[11]
	name := make([]byte, (110+length+3)/4*4-110)
	if _, err := io.ReadFull(in, name); err != nil {
		return e, nil, err
	}
	content = make([]byte, (size+3)/4*4)
	if _, err := io.ReadFull(in, content); err != nil {
		return e, nil, err
	}
	e = entry{string(name[:length-1]), string(header[6:14]), numbers[1], int(numbers[4])}
	if e.name == "TRAILER!!!" {
		return e, nil, io.EOF
	}
	return e, content[:size], nil
}

// machineRoot prepares the emulated machine and gives its root image.
func (h Home) machineRoot() (string, error) {
	if _, err := output("", filepath.Join(h.Root, "hack/vm-exec"), "-p"); err != nil {
		return "", err
	}
	return newest(filepath.Join(filepath.Dir(h.Cache), "vm", "root-*.cpio"))
}

// newest gives the file that was used last.
func newest(pattern string) (string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	var found string
	var best os.FileInfo
	for _, name := range files {
		info, err := os.Stat(name)
		if err == nil && (best == nil || info.ModTime().After(best.ModTime())) {
			found, best = name, info
		}
	}
	if best == nil {
		return "", fmt.Errorf("no %s", pattern)
	}
	return found, nil
}
