/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what rdrecv --resume may do to the file that it is given. */
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stream/resume.h"

static const char one_id[] = "0123456789abcdef0123456789abcdef";
static const char other_id[] = "fedcba9876543210fedcba9876543210";

static char folder[64];

static void leave(void)
{
    char command[128];

    if (getpid() != check_process)
        return;
    (void)snprintf(command, sizeof command, "exec rm -rf %s", folder);
    if (chdir("/") != 0 || system(command) != 0)
        abort();
}

static void fresh(void)
{
    if (*folder)
        leave();
    else
        CHECK(atexit(leave) == 0);
    (void)snprintf(folder, sizeof folder, "/tmp/pipe-resume-XXXXXX");
    CHECK(mkdtemp(folder) && chdir(folder) == 0);
}

/* Opens the file as the shell does for >>NAME, and appends this text. */
static int append(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        abort();
    return fd;
}

static off_t size_of(const char *name)
{
    struct stat is;

    return stat(name, &is) == 0 ? is.st_size : -1;
}

/* Leaves an interrupted stream: "first" is confirmed in `output`, and more bytes follow it that
 * were not recorded. */
static void cut_after_first(bool is_whole)
{
    rd_resume_t resume;
    rd_why_t why;
    int fd;

    CHECK_IN(fresh());
    fd = append("output", "");
    CHECK(rd_resume_take(&resume, "note", fd, &why));
    CHECK(rd_resume_accept(&resume, fd, one_id, sizeof one_id - 1, &why));
    CHECK(write(fd, "first", 5) == 5);
    CHECK(rd_resume_confirm(&resume, fd, 5, is_whole, &why));
    CHECK(write(fd, " and more", 9) == 9);
    close(fd);
}

static void nothing_is_cut_before_the_sender_is_there(void)
{
    rd_resume_t resume;
    rd_why_t why;
    int fd;

    CHECK_IN(cut_after_first(false));
    fd = append("output", "");
    CHECK(rd_resume_take(&resume, "note", fd, &why));
    CHECK_EQ(size_of("output"), 14);
    /* The sender of a different stream. */
    CHECK(!rd_resume_accept(&resume, fd, other_id, sizeof other_id - 1, &why));
    CHECK_EQ(size_of("output"), 14);
    CHECK(rd_resume_accept(&resume, fd, one_id, sizeof one_id - 1, &why));
    CHECK(resume.bytes == 5 && size_of("output") == 5);
    close(fd);
}

static void a_file_that_is_not_the_noted_one_is_refused(void)
{
    rd_resume_t resume;
    rd_why_t why;
    int fd;

    CHECK_IN(cut_after_first(false));
    fd = append("big", "another file, which is longer");
    CHECK(!rd_resume_take(&resume, "note", fd, &why));
    CHECK(strstr(why.text, "another file") != NULL);
    CHECK_EQ(size_of("big"), 29);
    close(fd);
    /* The same name, but no longer the same file. */
    CHECK(rename("big", "output") == 0);
    fd = append("output", "");
    CHECK(!rd_resume_take(&resume, "note", fd, &why));
    close(fd);
}

static void what_follows_a_whole_stream_stays(void)
{
    rd_resume_t resume;
    rd_why_t why;
    int fd;

    CHECK_IN(cut_after_first(true));
    fd = append("output", "");
    CHECK(rd_resume_take(&resume, "note", fd, &why));
    CHECK(rd_resume_accept(&resume, fd, one_id, sizeof one_id - 1, &why));
    CHECK(resume.bytes == 5 && size_of("output") == 14);
    /* It is confirmed again, and stays complete. */
    CHECK(rd_resume_confirm(&resume, fd, 5, true, &why));
    CHECK(rd_resume_take(&resume, "note", fd, &why));
    CHECK(rd_resume_accept(&resume, fd, one_id, sizeof one_id - 1, &why));
    CHECK_EQ(size_of("output"), 14);
    close(fd);
}

/* If another user has planted a file or link under the name of the new note, nothing is written to
 * it. */
static void a_note_is_written_into_a_file_of_its_own(void)
{
    rd_resume_t resume;
    rd_why_t why;
    int fd;

    CHECK_IN(fresh());
    close(append("victim", "what was there"));
    CHECK(link("victim", "note.new") == 0);
    fd = append("output", "");
    CHECK(rd_resume_take(&resume, "note", fd, &why));
    CHECK(rd_resume_accept(&resume, fd, one_id, sizeof one_id - 1, &why));
    CHECK_EQ(size_of("victim"), 14);
    close(fd);
}

static const check_case_t cases[] = {
    {"nothing is cut before the sender is there", nothing_is_cut_before_the_sender_is_there},
    {"a file that is not the noted one is refused", a_file_that_is_not_the_noted_one_is_refused},
    {"what follows a whole stream stays", what_follows_a_whole_stream_stays},
    {"a note is written into a file of its own", a_note_is_written_into_a_file_of_its_own},
};

CHECK_MAIN(cases)
