package main

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Options that a bind mount can have.
var mountOptions = map[string]uintptr{
	"ro":         unix.MS_RDONLY,
	"rw":         0,
	"defaults":   0,
	"noexec":     unix.MS_NOEXEC,
	"nosuid":     unix.MS_NOSUID,
	"nodev":      unix.MS_NODEV,
	"noatime":    unix.MS_NOATIME,
	"nodiratime": unix.MS_NODIRATIME,
	"relatime":   unix.MS_RELATIME,
}

func mountFlags(words []string) (uintptr, error) {
	var flags uintptr
	for _, word := range words {
		flag, is := mountOptions[word]
		if !is {
			return 0, status.Errorf(codes.InvalidArgument, "a folder has no mount option %q", word)
		}
		flags |= flag
	}
	return flags, nil
}

// bindMount mounts, and again with the options: a bind mount takes none at first.
func bindMount(source, target string, flags uintptr) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "bind %s to %s: %v", source, target, err)
	}
	if flags == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		unix.Unmount(target, unix.MNT_DETACH)
		return status.Errorf(codes.Internal, "set the options of %s: %v", target, err)
	}
	return nil
}

// unmount takes back every mount that is there; none is none.
func unmount(target string) error {
	for {
		mounted, err := isMounted(target)
		if err != nil || !mounted {
			return err
		}
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
			return status.Errorf(codes.Internal, "unmount %s: %v", target, err)
		}
	}
}

func isMounted(path string) (bool, error) {
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false, status.Errorf(codes.Internal, "the mount table: %v", err)
	}
	defer table.Close()
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && unescape(fields[4]) == path {
			return true, nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, status.Errorf(codes.Internal, "the mount table: %v", err)
	}
	return false, nil
}

// unescape turns `\040` and its like into what they stand for.
func unescape(text string) string {
	var plain strings.Builder
	for len(text) > 0 {
		if text[0] == '\\' && len(text) >= 4 {
			if code, err := strconv.ParseUint(text[1:4], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				text = text[4:]
				continue
			}
		}
		plain.WriteByte(text[0])
		text = text[1:]
	}
	return plain.String()
}
