/* main.c - the program `lapse`. */
#include "cli.h"

int main(int argc, char **argv)
{
    return lapse_cli(argc, argv);
}
